"""A function's source is told without its layout, quickly at a restart, and as it was loaded."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path
from types import ModuleType

import pytest

from lockstep import __version__
from lockstep.build import fingerprint, sources

TEXT = '''
def scaled(x):
    """Doc."""
    return x * 2  # twice


def decorated(f):
    return f


@decorated
def kept(x):
    def inner(y):
        return y in {"a", "b", "c"}
    return inner(x)


ONE, OTHER = (lambda x: x + 1), (lambda x: x + 2)
'''


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    sources._table_of.cache_clear()
    sources._made.cache_clear()
    return tmp_path / "cache" / "lockstep" / "sources"


def load(folder: Path, text: str, name: str = "code.py") -> ModuleType:
    path = folder / name
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("some_code", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    exec(compile(text, str(path), "exec", dont_inherit=True), vars(module))
    return module


def digests(module: ModuleType) -> list[str]:
    functions = (module.scaled, module.kept, module.ONE, module.OTHER)
    return [sources.digest_of_source.__wrapped__(function) for function in functions]


def test_layout_comments_docstrings_and_paths_do_not_count(tmp_path: Path) -> None:
    one = digests(load(tmp_path, TEXT))
    other = (
        TEXT.replace('"""Doc."""', '"""Another."""')
        .replace("  # twice", "")
        .replace("x * 2", "(x *\n        2)")
    )
    assert digests(load(tmp_path, "\n\n" + other, "elsewhere.py")) == one
    assert len(set(one)) == 4 and not one[0].startswith("bytecode")


@pytest.mark.parametrize(
    ("old", "new", "at"),
    [("x * 2", "x * 3", 0), ("@decorated\n", "", 1), ('"c"', '"d"', 1), ("x + 2", "x + 3", 3)],
)
def test_a_change_tells_its_function_alone(tmp_path: Path, old: str, new: str, at: int) -> None:
    one, other = digests(load(tmp_path, TEXT)), digests(load(tmp_path, TEXT.replace(old, new)))
    assert [i for i, (a, b) in enumerate(zip(one, other, strict=True)) if a != b] == [at]


def test_a_restart_reads_what_was_kept(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = digests(load(tmp_path, TEXT))
    (kept,) = own_cache.glob("*.json")
    assert kept.stat().st_mode & 0o777 == 0o600 and own_cache.stat().st_mode & 0o777 == 0o700
    sources._table_of.cache_clear()

    def parse(data: bytes) -> None:
        raise AssertionError("a file was parsed again")

    monkeypatch.setattr(sources, "table_of", parse)
    assert digests(load(tmp_path, TEXT)) == one


@pytest.mark.parametrize("spoil", ["not json", '["a list"]', None])
def test_a_spoilt_or_foreign_table_is_made_again(
    tmp_path: Path, own_cache: Path, spoil: str | None
) -> None:
    one = digests(load(tmp_path, TEXT))
    (kept,) = own_cache.glob("*.json")
    if spoil is None:  # another user could write it
        kept.write_text("{}")
        kept.chmod(0o666)
    else:
        kept.write_text(spoil)
    sources._table_of.cache_clear()
    assert digests(load(tmp_path, TEXT)) == one


def test_a_file_that_was_edited_since_is_told_by_what_is_loaded(tmp_path: Path) -> None:
    module = load(tmp_path, TEXT)
    path = tmp_path / "code.py"
    path.write_text(TEXT.replace("x * 2", "x * 5"))
    os.utime(path, ns=(1, 1))
    edited = digests(module)
    assert edited[0] == f"bytecode {sources.digest_of_code(module.scaled.__code__)}"
    assert edited[1:] == digests(load(tmp_path, TEXT))[1:]
    assert digests(load(tmp_path, TEXT.replace("x * 2", "x * 5")))[0] != edited[0]


def test_what_has_no_file_is_told_by_its_byte_code() -> None:
    spaces: list[dict[str, object]] = [{}, {}]
    for space, number in zip(spaces, (1, 2), strict=True):
        exec(f"def made(x): return x + {number}", space)
    one, other = (sources.digest_of_source.__wrapped__(space["made"]) for space in spaces)
    assert one.startswith("bytecode ") and one != other


def test_old_tables_are_dropped(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sources, "_MOST", 2)
    for number in range(4):
        digests(load(tmp_path, TEXT + f"\nX = {number}\n", f"{number}.py"))
    assert len(list(own_cache.glob("*.json"))) == 2


def test_what_was_made_of_files_is_remembered_while_they_are_as_they_were(own_cache: Path) -> None:
    made: list[str] = []

    def make() -> str:
        made.append("anew")
        return f"{len(made)}"

    assert [sources.remembered(["a", 1], make) for _ in range(2)] == ["1", "1"]
    assert sources.remembered(["a", 2], make) == "2"
    for kept in own_cache.glob("*.json"):
        kept.write_text("{}")
    assert sources.remembered(["a", 1], make) == "3"
    assert len(made) == 3


def test_the_own_version_follows_the_text_of_the_package() -> None:
    first = fingerprint.own_version.__wrapped__()
    again = fingerprint.own_version.__wrapped__()
    files = [*Path(fingerprint.__file__).parent.glob("*.py")]
    assert first == again and first.startswith(f"{__version__}+")
    assert fingerprint._digest_of(files) != fingerprint._digest_of(files[1:])
