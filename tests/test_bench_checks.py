"""The benchmarks of types and checks measure what they say; a line that does not hold fails."""

from __future__ import annotations

import pytest

from bench import capture, check_cost, types_off

PARTS = check_cost.PARTS


def clock_of(seconds):
    """A clock that each call of a function advances by what is next in its list."""
    now = [0.0]

    def advancing(times):
        left = iter(times)

        def call():
            now[0] += next(left)

        return call

    return lambda: now[0], *map(advancing, seconds)


def test_a_ratio_is_the_median_of_pairs_side_by_side():
    ours = [1.1, 2.2, 33.0, 1.1, 1.1]  # the machine is busy in the second pair, and bursts once
    theirs = [1.0, 2.0, 1.0, 1.0, 5.0]
    clock, *sides = clock_of((ours, theirs))
    ratio, seconds = types_off.ratio(*sides, 5, 1, clock)
    assert (round(ratio, 6), round(seconds, 6)) == (1.1, 1.1)


def test_a_slower_side_is_not_hidden_by_its_best_turns():
    clock, *sides = clock_of(([1.0, 1.5, 1.5, 1.5, 1.5], [1.0] * 5))
    assert types_off.ratio(*sides, 5, 1, clock)[0] == pytest.approx(1.5)


def row(nodes, **seconds):
    seconds = dict.fromkeys(PARTS, nodes / 1000) | seconds
    return nodes, seconds, seconds


def linear(**late):
    """Depths whose seconds grow as their nodes do, but for some parts of the last one."""
    return {2: [row(100)], 4: [row(200)], 8: [row(400)], 16: [row(800, **late)]}


def test_what_grows_as_the_nodes_do_holds():
    lines = check_cost.judge(linear())
    assert [holds for holds, _ in lines] == [True] * (len(PARTS) + 1)
    assert lines[0][1] == (
        "capture: work 2 -> 16 layers grow 1.00 times as the nodes do, 8 -> 16 1.00 times, "
        "at most 1.25"
    )


def captured(work, size):
    """Depths of a capture, whose last one costs this much of what its nodes do."""
    rows = {depth: 500 * depth for depth in (10, 20, 40)}
    found = {d: {"nodes": n, "seconds": n / 1e3, "work": n, "bytes": n} for d, n in rows.items()}
    found[40] |= {"work": 20_000 * work, "bytes": 20_000 * size}
    return found


def test_a_capture_that_costs_what_its_nodes_do_holds():
    lines = capture.judge(captured(1.0, 1.05))
    assert [holds for holds, _ in lines] == [True] * 4
    assert lines[3][1] == (
        "20 -> 40 layers: 2.10 times the bytes for 2.00 times the nodes, at most 2.20"
    )


@pytest.mark.parametrize(
    ("work", "size", "told"),
    [(1.2, 1.0, "2.40 times the work"), (1.0, 1.2, "2.40 times the bytes")],
)
def test_a_capture_that_grows_faster_than_its_nodes_fails(work, size, told):
    (line,) = [line for holds, line in capture.judge(captured(work, size)) if not holds]
    assert told in line and line.startswith("20 -> 40 layers")


def test_what_grows_faster_fails_alone():
    lines = check_cost.judge(linear(gold=1.6))
    failed = [text for holds, text in lines if not holds]
    assert [text.partition(":")[0] for text in failed] == ["gold"]
    assert "grow 2.00 times" in failed[0]


def test_a_part_that_takes_no_time_is_not_judged():
    found = linear()
    for layers, seconds in ((2, 1e-5), (4, 1e-5), (8, 1e-5), (16, 1e-2)):
        found[layers][0][1]["randomness"] = seconds
    lines = check_cost.judge(found)
    assert [holds for holds, _ in lines] == [True] * len(PARTS)
    assert not any(text.startswith("randomness") for _, text in lines)


def test_a_last_doubling_that_is_too_much_fails_whatever_the_first_one_cost():
    found = linear()
    found[2][0][1]["types"] = 10.0
    found[16][0][1]["types"] = 1.2
    lines = dict((text.partition(":")[0], holds) for holds, text in check_cost.judge(found))
    assert not lines["types"]


def test_a_machine_that_is_slower_for_a_while_changes_nothing():
    found = linear()
    nodes, seconds, units = found[16][0]
    found[16][0] = nodes, {part: 3 * value for part, value in seconds.items()}, units
    assert all(holds for holds, _ in check_cost.judge(found))
    grown = {part: 2 * value for part, value in units.items()}
    found[16][0] = nodes, seconds, units | {"gold": grown["gold"]}
    assert [text[:4] for holds, text in check_cost.judge(found) if not holds] == ["gold"]


def test_one_turn_that_was_disturbed_does_not_decide():
    usual, odd = linear(), linear(gold=1.6)
    found = {depth: [*usual[depth], *odd[depth], *usual[depth]] for depth in usual}
    assert all(holds for holds, _ in check_cost.judge(found))


def test_depths_take_turns():
    order = []
    times = {1: iter([9.0, 1.0, 7.0, 2.0]), 2: iter([4.0, 4.0, 4.0])}

    def check(layers):
        order.append(layers)
        return row(10 * layers, gold=next(times[layers]))

    found = check_cost.in_turn(check, [1, 2], repeat=3)
    assert order == [1, 1, 2, 2, 1, 1, 2]
    assert [seconds["gold"] for _, seconds, _ in found[1]] == [1.0, 7.0, 2.0]


@pytest.fixture(scope="module")
def small():
    return check_cost.one_check(1)


def test_a_check_is_timed_by_part(small):
    nodes, seconds, units = small
    assert nodes > 400
    assert sorted(seconds) == sorted(PARTS)
    assert all(seconds[name] > 0 for name in (*check_cost.WITNESSES, "capture"))
    assert all(units[name] > 0 for name in seconds)


def shape(**changes):
    made = {"findings": [], "undecided": [], "seconds": 1.0, "nodes": 5, "gib": 1.0}
    return made | changes


ENTRY = "LS504: an invariant value meets S(1)\n  at   x.py:1  axis tp"


@pytest.mark.parametrize(
    ("right", "wrong", "holds"),
    [
        ({}, {"findings": [ENTRY]}, [True, True]),
        ({"gib": 8.1}, {"findings": [ENTRY]}, [False, True]),
        ({"undecided": ["the layout of w"]}, {"findings": [ENTRY]}, [False, True]),
        ({"findings": [ENTRY]}, {"findings": [ENTRY]}, [False, True]),
        ({}, {}, [True, False]),
    ],
)
def test_by_shape_the_right_program_passes_in_its_memory_and_the_wrong_is_found(
    right, wrong, holds
):
    lines = check_cost.judge_shape(shape(**right), shape(**wrong))
    assert [held for held, _ in lines] == holds


@pytest.mark.parametrize(("without", "codes"), [("", []), ("entry", ["LS504"])])
def test_a_layer_of_70b_is_judged_by_shape(without, codes):
    said = check_cost.by_shape(2, without)
    assert [text[:5] for text in said["findings"]] == codes
    assert said["undecided"] == []
    assert "traced at (0, 0), (0, 1), (1, 0)" in said["established"][-1]
