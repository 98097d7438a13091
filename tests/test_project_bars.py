"""The table of claims: every command exists, a failing one is seen, the longest is last."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from bench import bars, demo
from tests.sources import ROOT, command_files


def missing(command: str) -> list[str]:
    """Return the files that a command needs and that do not exist."""
    return [path for path in command_files(command) if not (ROOT / path).exists()]


@pytest.mark.parametrize("bar", bars.BARS, ids=lambda bar: bar.command)
def test_every_claim_has_a_command_that_exists(bar):
    assert command_files(bar.command)
    assert missing(bar.command) == []


@pytest.mark.parametrize("command", ["bench/none.py", "-m bench.none", "-m pytest tests/none"])
def test_a_command_that_does_not_exist_is_found(command):
    assert missing(command) != []


def test_outcomes_are_told_with_the_longest_last():
    rows = [
        (bars.Bar("slow", "a"), bars.Outcome(0, 90.0, "x\n== 3 passed ==\n\n")),
        (bars.Bar("quick", "b"), bars.Outcome(1, 2.0, "why it failed")),
    ]
    out = Console(file=io.StringIO(), width=120)
    out.print(bars.table(rows))
    text = out.file.getvalue()
    assert re.search(r"FAIL . quick . python b . 2\.0 +. why it failed", text)
    assert re.search(r"pass . slow +. python a . 90\.0 +. 3 passed", text)
    assert text.index("quick") < text.index("slow")


def test_the_exit_code_follows_the_commands(monkeypatch, capsys):
    good, bad = bars.Bar("good", "-c print('fine')"), bars.Bar("bad", "-c raise(SystemExit(3))")
    monkeypatch.setattr(bars, "BARS", [good])
    assert bars.main() == 0
    monkeypatch.setattr(bars, "BARS", [good, bad])
    assert bars.main() == 1
    assert bars.main(only="good") == 0
    assert bars.main(only="nothing of that name") == 1


def test_a_command_that_hangs_is_stopped_and_counts_as_failed():
    outcome = bars.run("-c import(time)", limit_s=5)
    assert outcome.code != 0
    outcome = bars.run("-m http.server 0 --bind 127.0.0.1", limit_s=1)
    assert (outcome.code, outcome.last_line) == (124, "stopped after 1 s")


TEXT = """
| 0    | built  | 3f2a |
| 1    | loaded | 3f2a |
| at the start                      | 5.6400 |
| at the end, mean of the last 20 steps | 1.3707 |
| of a bigram table of this text    | 2.4527 |
"""


def test_the_demo_is_read_from_its_tables():
    assert demo.roles(TEXT) == ["built", "loaded"]
    assert demo.figure(TEXT, "at the start") == 5.64
    assert demo.figure(TEXT, "the last 20 steps") == 1.3707
    with pytest.raises(SystemExit, match="no row 'of nothing'"):
        demo.figure(TEXT, "of nothing")


@pytest.mark.parametrize(
    ("second", "end", "code"), [("loaded", 1.3, 0), ("built", 1.3, 1), ("loaded", 2.5, 1)]
)
def test_the_demo_fails_where_its_line_does_not_hold(second, end, code, monkeypatch, capsys):
    first = TEXT.replace("1.3707", str(end))
    texts = iter([(first, 60.0), (first.replace("built", second), 40.0)])
    monkeypatch.setattr(demo, "demo", lambda folder: next(texts))
    assert demo.main() == code
    assert f"loss 5.640 -> {end:.3f}" in capsys.readouterr().out
