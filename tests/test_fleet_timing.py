"""All limits in one place, and one variable that overrides them."""

from __future__ import annotations

import dataclasses
import re

import pytest

from lockstep.errors import UsageError
from lockstep.fleet import Timing
from tests.sources import ROOT


def test_defaults_bound_how_long_a_job_outlives_an_error():
    timing = Timing.for_world(2, {})
    assert (timing.beat, timing.lease, timing.dead, timing.store, timing.start) == (
        0.5,
        30,
        60,
        60,
        600,
    )
    # One beat to see the fault, grace in a stuck call, hard for one that goes on, 1 s to print.
    assert timing.beat + timing.grace + timing.hard + 1 <= 15
    # A broken connection whose cause is not told is posted, then heeded, in the same time.
    assert timing.cause + timing.ack < timing.grace + timing.hard


def test_beat_and_silence_grow_with_the_world():
    timing = Timing.for_world(16384, {})
    assert timing.beat == pytest.approx(6.144)
    assert timing.dead >= 8 * timing.beat and timing.lease >= 8 * timing.beat
    # So many ranks make fewer than 10,000 store calls a second, of the 80,000 a host can answer.
    assert 16384 * 3 / timing.beat < 10_000


def test_the_variable_overrides_by_name():
    timing = Timing.for_world(2, {"LOCKSTEP_TIMING": " beat=0.2, dead = 4 ,"})
    assert (timing.beat, timing.dead, timing.lease) == (0.2, 4, 30)
    assert timing.polls(4) == 20 and timing.polls(0.01) == 1


@pytest.mark.parametrize("text", ["bet=1", "beat", "beat=soon", "beat=0", "dead=-1", "dead=inf"])
def test_a_bad_variable_is_named(text):
    with pytest.raises(UsageError) as caught:
        Timing.for_world(2, {"LOCKSTEP_TIMING": text})
    assert f"LOCKSTEP_TIMING holds {text!r}" in str(caught.value)
    assert "the names are beat, lease, dead, grace" in str(caught.value)


def test_the_page_has_every_limit_with_its_default():
    page = (ROOT / "docs" / "fleet.md").read_text()
    rows = re.findall(r"^\| (\w+) \| ([\d.]+) \|", page, re.MULTILINE)
    defaults = {field.name: field.default for field in dataclasses.fields(Timing)}
    assert {name: float(value) for name, value in rows} == defaults
