"""Tests of the same project that have nothing to do with any of it."""


def test_sums():
    assert 1 + 1 == 2
