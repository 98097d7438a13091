"""Scripts and modules loaded from other text; their files, and what is cached of them, stay."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from pathlib import Path

import pytest

from lockstep.run.edited import VARIABLE, loading, run_text, texts_from


@pytest.fixture
def package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package whose modules no other test has loaded."""
    folder = tmp_path / "pkg_of_edits"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "a.py").write_text("def f():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    yield folder
    for name in [name for name in sys.modules if name.startswith("pkg_of_edits")]:
        del sys.modules[name]
    importlib.invalidate_caches()


def test_a_module_is_loaded_from_the_text_and_tells_it_as_its_source(package):
    file = package / "a.py"
    text = "import os\n\n\ndef f():\n    return 2\n"
    with loading({str(file.resolve()): text}):
        module = importlib.import_module("pkg_of_edits.a")
    assert module.f() == 2
    assert module.__file__ == str(file)
    assert inspect.getsource(module.f) == "def f():\n    return 2\n"
    assert file.read_text() == "def f():\n    return 1\n"
    assert not list(package.glob("__pycache__/a.*"))


def test_outside_of_it_the_file_is_loaded(package):
    with loading({str((package / "a.py").resolve()): "def f():\n    return 2\n"}):
        pass
    assert importlib.import_module("pkg_of_edits.a").f() == 1
    assert not any(type(finder).__module__ == "lockstep.run.edited" for finder in sys.meta_path)


def test_a_script_is_main_and_keeps_its_name(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("raise SystemExit(1)")
    text = (
        "import json, sys\nfrom pathlib import Path\nPath(__file__ + '.out').write_text(__name__)"
    )
    main = sys.modules["__main__"]
    run_text(script, text)
    assert (tmp_path / "train.py.out").read_text() == "__main__"
    assert sys.modules["__main__"] is main


def test_an_error_in_the_text_names_its_line(tmp_path):
    with pytest.raises(ZeroDivisionError) as raised:
        run_text(tmp_path / "train.py", "x = 1\nx / 0\n")
    assert raised.traceback[-1].lineno == 1
    assert str(raised.traceback[-1].statement) == "x / 0"
    assert sys.modules["__main__"].__name__ != "train"


def test_the_variable_names_a_file(tmp_path):
    (tmp_path / "edited").write_text(json.dumps({"/a.py": "x = 1"}))
    assert texts_from({VARIABLE: str(tmp_path / "edited")}) == {"/a.py": "x = 1"}
    assert texts_from({}) == {}
