"""How the table of other people's programs is judged, without one of their packages."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
import torch
from rich.console import Console

from clients import needs
from clients.judged import (
    ESTABLISHED,
    FAILED,
    PARTS,
    REFUSED,
    Check,
    Row,
    Start,
    figures,
    holds,
    judge,
)
from clients.table import line, show

CALL = {"equal": True, "repeats": True, "close": True, "off": 0.0, "told": ""}
LIKE = {"ranks": [0, 1], "digest": "a", "rows": 9}
SILENT = Check()
TOLD = {
    "code": "LS100",
    "what": "model is wrapped by X",
    "where": "train.py:7",
    "fixes": ["pass the plain model"],
}
NAMED = Row("Llama", "transformers", FAILED)


def start(*calls: dict[str, Any], role: str = "loaded", **more: Any) -> Start:
    """A start of two ranks that went well, but for what is given."""
    roles = ["built", "loaded"] if role == "built" else [role, role]
    results = [{"calls": list(calls) or [CALL, CALL]} for _ in range(2)]
    words: dict[str, Any] = dict(code=0, results=results, roles=roles, digests=["d", "d"])
    return Start(**{**words, "likeness": LIKE, **more})


BUILT, LOADED = start(role="built"), start()


def refused(**other: Any) -> Start:
    """A start whose ranks were both refused, with fields of the refusal changed."""
    return Start(1, [{"refused": {**TOLD, **other}}] * 2)


def test_all_that_went_well_is_established() -> None:
    row = judge(NAMED, BUILT, LOADED, SILENT)
    assert row.status == ESTABLISHED and row.parts == dict.fromkeys(PARTS, True)


ODD: dict[str, tuple[str, Start, Start, Check | None]] = {
    "no result of a rank": ("captured", replace(BUILT, results=[None, None]), LOADED, SILENT),
    "one digest a rank": ("portable", replace(BUILT, digests=["d", "e"]), LOADED, SILENT),
    "no certificate": ("portable", replace(BUILT, likeness=None), LOADED, SILENT),
    "a finding": ("checked", BUILT, LOADED, Check(("LS530: a gradient is partial",))),
    "left undecided": ("checked", BUILT, LOADED, Check(undecided=("weight: whole or a shard?",))),
    "not checked": ("checked", BUILT, LOADED, None),
    "two builders": ("built", replace(BUILT, roles=["built", "built"]), LOADED, SILENT),
    "nothing built": ("built", LOADED, LOADED, SILENT),
    "built again": ("loaded", BUILT, BUILT, SILENT),
    "another one loaded": ("loaded", BUILT, replace(LOADED, digests=["e", "e"]), SILENT),
    "nothing at the second start": ("loaded", BUILT, Start(1, [None, None]), SILENT),
}


@pytest.mark.parametrize("name", ODD)
def test_each_part_that_is_missing_fails_the_program(name: str) -> None:
    part, first, second, check = ODD[name]
    row = judge(NAMED, first, second, check)
    assert row.status == FAILED and not row.parts[part]
    assert part in row.told.splitlines()[0]
    assert not holds([row], least=1, packages=1)


UNEQUAL = {**CALL, "equal": False, "told": "unlike eager: loss (1 of 3)"}


@pytest.mark.parametrize("late", [False, True])
def test_a_program_that_runs_wrong_fails(late: bool) -> None:
    """At its second batch, too: what the first one left in the graph shows there."""
    odd = start(CALL, UNEQUAL)
    row = judge(NAMED, BUILT if late else replace(odd, roles=BUILT.roles), odd, SILENT)
    assert row.status == FAILED and "unlike eager: loss" in row.told and not row.parts["bitwise"]


def test_eager_that_differs_from_itself_as_much_excuses_bits_alone() -> None:
    noisy = {**UNEQUAL, "repeats": False}
    first, second = start(noisy, role="built"), start(noisy)
    row = judge(NAMED, first, second, SILENT)
    assert (row.status, row.unequal) == (ESTABLISHED, True)
    far = start({**noisy, "close": False})
    assert judge(NAMED, first, far, SILENT).status == FAILED
    assert judge(NAMED, first, second, Check(("LS530: a gradient is partial",))).status == FAILED


def test_what_the_manifest_says_of_rounding_excuses_bits_alone() -> None:
    told = {"result": "rounding", "why": "2 value(s) have other bits"}
    first, second = start(UNEQUAL, role="built", eager=told), start(UNEQUAL)
    row = judge(NAMED, first, second, SILENT)
    assert (row.status, row.rounded, row.parts["bitwise"]) == (ESTABLISHED, True, False)
    assert row.told == "as eager but for rounding: 2 value(s) have other bits"
    same = replace(first, eager={"result": "equal"})
    assert judge(NAMED, same, second, SILENT).status == FAILED
    assert judge(NAMED, first, replace(second, digests=["e", "e"]), SILENT).status == FAILED
    assert judge(NAMED, first, start({**UNEQUAL, "off": 0.5}), SILENT).status == FAILED


def test_a_refusal_with_a_line_and_a_way_on_counts_where_eager_runs() -> None:
    row = judge(NAMED, refused(), LOADED, None)
    assert row.status == REFUSED and row.refusal is not None
    assert row.refusal.where == "train.py:7"
    assert judge(NAMED, refused(), replace(LOADED, code=1), None).status == FAILED


@pytest.mark.parametrize(
    ("odd", "told"),
    [
        ({"where": ""}, "names no line"),
        ({"fixes": []}, "does not say what to do"),
        ({"code": "LS500"}, "a right program is told that its gradients are wrong"),
    ],
)
def test_a_refusal_that_nobody_can_act_on_fails(odd: dict[str, Any], told: str) -> None:
    row = judge(NAMED, refused(**odd), LOADED, None)
    assert row.status == FAILED and told in row.told


def test_a_rank_that_was_told_nothing_fails() -> None:
    first = Start(1, [{"refused": TOLD}, None])
    assert judge(NAMED, first, LOADED, None).told == "not every rank was told"


def rows(count: int, packages: int = 6, **odd: Any) -> list[Row]:
    """Established programs of so many packages, the last of them changed."""
    parts = dict.fromkeys(PARTS, True)
    made = [Row(f"p{i}", f"k{i % packages}", ESTABLISHED, parts) for i in range(count)]
    return [*made[:-1], replace(made[-1], **odd)]


def test_the_command_holds_only_where_all_of_enough_do() -> None:
    assert holds(rows(20)) and holds(rows(20, status=REFUSED, parts={}))
    assert not holds(rows(19)) and not holds(rows(20, packages=5))
    assert not holds(rows(20, status=FAILED)) and not holds(rows(20, status="skipped"))
    assert not holds([])


def test_the_figures_count_what_the_notes_name() -> None:
    several = [*rows(3, noted=True), *rows(1, status=REFUSED, parts={}, noted=True)]
    odd = [*rows(1, unequal=True), *rows(1, rounded=True)]
    noted, last = figures([*several, *rows(1, status=FAILED), *odd])
    assert noted == "named in the notes as bitwise: 1 of 2, refused by name: 1"
    assert last.startswith("7 programs of 3 packages: 5 established (1 where eager differs")
    assert "itself, 1 but for rounding, as the manifest says), 1 refused" in last
    assert last.endswith("1 refused with their line, 1 failed")


def test_the_table_shows_each_mark_and_the_whole_refusal() -> None:
    made = [
        judge(NAMED, BUILT, LOADED, SILENT),
        judge(replace(NAMED, name="wrapped"), refused(), LOADED, None),
        judge(replace(NAMED, name="odd"), BUILT, BUILT, SILENT),
    ]
    out = Console(file=io.StringIO(), width=200)
    show(out, made)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "LS100 at train.py:7: model is wrapped by X" in text and "-> pass the plain" in text
    assert "not loaded" in text and "no " in text
    assert "captured, portable, checked" in line(made[0]) and "train.py:7" in line(made[1])


def test_calls_are_compared_by_every_tensor() -> None:
    from clients.rank import against

    one = {"loss": torch.ones(1), "w": torch.ones(3)}
    other = {"loss": torch.ones(1), "w": torch.ones(3) + 1e-7}
    assert against(one, one, one) == CALL
    found = against(other, one, one)
    assert not found["equal"] and not found["close"] and 0 < found["off"] < 1e-6
    assert found["told"] == "unlike eager: w (1 of 2)"
    assert against(other, one, other)["close"] and not against(other, one, other)["repeats"]
    assert not against({"loss": one["loss"]}, one, one)["equal"]


def test_a_package_that_is_missing_is_told_with_how_to_install_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from clients import __main__ as command

    packages = {"torch": "torch", "nowhere": "nowhere-here", "nowhere.core": "nowhere-core"}
    monkeypatch.setattr(needs, "NEEDED", packages)
    assert command.main([]) == 2
    told = "not installed: nowhere-here, nowhere-core; pip install -e '.[dev,clients]'\n"
    assert capsys.readouterr().out == told


def test_the_shims_are_short() -> None:
    from clients import __main__ as command

    lines = [len(shim.read_text().splitlines()) for shim in command.SHIMS]
    assert len(lines) == 2 and max(lines) <= command.MOST_SHIM
