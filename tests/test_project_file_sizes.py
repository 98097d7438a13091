"""Small files, one idea each."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from tests.sources import PACKAGE, ROOT, package_files

LONGEST, MEDIAN = 450, 180
CATALOGUE = (
    "_compat.py"  # a list of small entries that must be one file, so that it can be reviewed
)


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def check_sizes(sizes: dict[str, int]) -> None:
    """Hold each file to the longest, and all of them to the median."""
    too_long = {name: size for name, size in sizes.items() if size > LONGEST}
    assert too_long == {}
    assert statistics.median(sizes.values()) <= MEDIAN


def test_the_package_is_made_of_small_files():
    sizes = {str(path.relative_to(PACKAGE)): lines(path) for path in package_files()}
    assert sizes.pop(CATALOGUE) <= 1100
    check_sizes({name: size for name, size in sizes.items() if size > 5})


def test_tests_examples_and_benchmarks_are_small_files():
    folders = ("tests", "examples", "bench", "clients")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    check_sizes({str(path.relative_to(ROOT)): lines(path) for path in paths})


def test_the_example_is_one_screen_and_a_half():
    assert lines(ROOT / "examples" / "train_llama.py") <= 80


def test_sources_are_ascii():
    files = [*package_files(), *(ROOT / "tests").rglob("*.py"), *ROOT.glob("*.md")]
    assert [str(path) for path in files if not path.read_text().isascii()] == []


@pytest.mark.parametrize("sizes", [{"a": 451}, {"a": 181, "b": 181, "c": 10}])
def test_a_long_file_and_a_high_median_are_found(sizes):
    with pytest.raises(AssertionError):
        check_sizes(sizes)
