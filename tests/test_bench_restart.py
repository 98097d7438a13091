"""The benchmarks of a restart and of a call: what does not hold fails, with its figures."""

from __future__ import annotations

import pytest

from bench import call, restart, restart_rank

PARTS = dict.fromkeys(restart_rank.PARTS, 0.002)


def turn(ours=0.02, floor=0.01, torch=2.0, loss=1.5, compilers=()):
    return {
        restart.OURS: {"seconds": ours, "loss": 1.5, "parts": PARTS, "compilers": compilers},
        restart.FLOOR: {"seconds": floor, "loss": loss},
        restart.TORCH: {"seconds": torch, "loss": 1.4},
    }


def test_a_restart_is_held_to_both_limits():
    # The second turn falls on a busy moment, all ways alike: its ratios are the same.
    lines = restart.judge({4: [turn(), turn(0.2, 0.1, 20.0), turn()]})
    assert [holds for holds, _ in lines] == [True] * 4
    assert lines[0][1] == "4 layers: 1/100 of warm torch.compile, at most 1/30"
    assert lines[1][1] == "4 layers: 2.00 times the floor, at most 4"
    assert lines[2][1] == "modules of a compiler that a loading rank imported: none"


@pytest.mark.parametrize(
    ("change", "fails"),
    [
        ({"torch": 0.5}, [0]),
        ({"floor": 0.004}, [1]),
        ({"compilers": ["torch._inductor.codecache"]}, [2]),
        ({"loss": 1.25}, [3]),
    ],
)
def test_a_restart_that_does_not_hold_fails(change, fails):
    lines = restart.judge({4: [turn(**change)] * 3})
    assert [i for i, (holds, _) in enumerate(lines) if not holds] == fails


def test_the_parts_of_a_restart_are_told_with_what_is_left():
    told = restart.shares([turn()[restart.OURS]])
    assert told.startswith("fingerprint 2.0, fetch 2.0,") and told.endswith("rest 10.0")


def test_a_part_inside_a_part_counts_once():
    class Work:
        def outer(self):
            return self.inner() + 1

        def inner(self):
            return sum(range(200_000))

    parts = restart_rank.Parts()
    parts.time(Work, "outer", "fetch")
    parts.time(Work, "inner", "verify")
    assert Work().outer() > 1
    assert 0 < parts.seconds["fetch"] < parts.seconds["verify"]


def test_ways_take_turns(tmp_path, monkeypatch):
    began = []

    def start(way, layers, caches):
        began.append(way[0])
        return turn()[way]

    monkeypatch.setattr(restart, "start", start)
    found = restart.turns(4, 3, tmp_path)
    assert "".join(began) == "LtLt" + "Lft" + "ftL" + "tLf"
    assert [sorted(one) for one in found] == [sorted(restart.WAYS)] * 3


@pytest.mark.parametrize(("whole", "code", "word"), [(90.0, 0, "holds"), (190.0, 1, "FAILS")])
def test_a_call_is_held_to_its_limit(whole, code, word, capsys):
    assert call.judge({call.EAGER: 10.0, call.WHOLE: whole}, 102) == code
    out = capsys.readouterr().out
    assert out.startswith(f"{word}: a call of a step over 102 parameters costs {whole - 10:.1f} us")
    assert f"{whole / 10:.1f} times an eager call" in out


def test_the_least_of_all_rounds_counts():
    seen = []
    least = call.microseconds({"a": lambda: seen.append("a"), "b": lambda: seen.append("b")}, 2, 3)
    assert "".join(seen) == "aaabbb" * 2
    assert 0 < least["a"] < 1e5
