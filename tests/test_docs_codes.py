"""Every code that a message may have has its page, and no page is of a code that does not exist."""

from __future__ import annotations

import ast
import re

import pytest

from tests.sources import ROOT, package_files

PAGES = (ROOT / "docs" / "codes.md").read_text()


def codes_in(source: str) -> set[str]:
    """Return the strings of a module that are a code; docstrings' examples are not."""
    constants = (n.value for n in ast.walk(ast.parse(source)) if isinstance(n, ast.Constant))
    return {value for value in constants if re.fullmatch(r"LS\d{3}", str(value))}


def sections(text: str) -> dict[str, str]:
    """Return each code's part of the page."""
    parts = re.split(r"^## (LS\d{3})\n", text, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def lacking(code: str, text: str) -> list[str]:
    """Return what a page should hold and does not: its meaning, an example, how to mend it."""
    meaning = re.match(r"\n(\S.{30,}?)\n\n```", text, re.DOTALL)
    example = re.search(r"^```(python)?\n\S.*?^```$", text, re.MULTILINE | re.DOTALL)
    mend = re.search(r"^\*\*Mend:\*\* \w?.{20,}", text, re.MULTILINE)
    found = {"meaning": meaning, "example": example, "mend": mend}
    return [f"{code}: no {name}" for name, there in found.items() if not there]


def test_every_code_has_a_page_and_every_page_a_code():
    used = set().union(*(codes_in(path.read_text()) for path in package_files()))
    assert len(used) > 40
    assert used == set(sections(PAGES))


@pytest.mark.parametrize("code", sections(PAGES))
def test_a_page_says_what_it_means_shows_it_and_mends_it(code):
    assert lacking(code, sections(PAGES)[code]) == []


def test_codes_stand_once_and_in_order():
    order = re.findall(r"^## (LS\d{3})$", PAGES, re.MULTILINE)
    assert order == sorted(set(order))


def test_what_is_missing_would_be_seen():
    assert codes_in('"""LS500: a doc"""\nx = Finding("LS599", "LS598 is text")') == {"LS599"}
    assert lacking("LS599", "\nToo short.\n") == [
        "LS599: no meaning", "LS599: no example", "LS599: no mend",
    ]  # fmt: skip
