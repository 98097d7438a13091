"""The user's suite: one test, six cells."""

import pytest
from block import Block, MendedBlock, batch, step

MATRIX = pytest.mark.lockstep(mesh=[{"tp": 1}, {"tp": 2}, {"tp": 4}], sp=[False, True])


@MATRIX
def test_block(lockstep_check, sp):
    lockstep_check(step, lambda mesh: (Block(mesh, sp), batch(mesh, sp)))


@MATRIX
def test_mended_block(lockstep_check, sp):
    report = lockstep_check(step, lambda mesh: (MendedBlock(mesh, sp), batch(mesh, sp)))
    assert report.established
