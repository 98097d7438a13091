"""Run a script with other text in place of some of its files, which stay as they are.

How a check tries out a fix: the script and the modules that it imports are loaded from the edited
text. `LOCKSTEP_EDITED` names a JSON file, path -> text, that the ranks of a job read.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import io
import json
import linecache
import os
import sys
from collections.abc import Iterator, Mapping
from importlib.abc import MetaPathFinder
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

VARIABLE = "LOCKSTEP_EDITED"


def texts_from(environ: Mapping[str, str]) -> dict[str, str]:
    """The edited texts by path; none where the variable names no file."""
    name = environ.get(VARIABLE, "")
    return json.loads(Path(name).read_text()) if name else {}


@contextlib.contextmanager
def loading(texts: Mapping[str, str]) -> Iterator[None]:
    """Load modules from other text while inside; those that are loaded already stay.

    Args:
        texts: resolved path -> the module's text; bytes that are no UTF-8 as surrogates.
    """
    finder = _Finder(texts)
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


def run_text(path: Path, text: str) -> None:
    """Run a script from other text, as `runpy.run_path` runs its file; it is `__main__` inside."""
    module = ModuleType("__main__")
    module.__dict__.update(__file__=str(path), __builtins__=__builtins__, __package__="")
    before = sys.modules["__main__"]
    sys.modules["__main__"] = module
    try:
        exec(_compiled(str(path), text), module.__dict__)
    finally:
        sys.modules["__main__"] = before


def _compiled(path: str, text: str) -> CodeType:
    source = text.encode("utf-8", "surrogateescape")
    # Tracebacks, and whoever asks for a function's source, see the lines that run.
    linecache.cache[path] = (len(text), None, io.StringIO(text).readlines(), path)
    return compile(source, path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    def __init__(self, texts: Mapping[str, str]) -> None:
        self._texts = texts

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or not spec.has_location or spec.origin is None:
            return None
        text = self._texts.get(os.path.realpath(spec.origin))
        if text is None:
            return None
        spec.loader, spec.cached = _Loader(name, spec.origin, text), None
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    """Gives the code of other text, and neither reads nor leaves a cached one."""

    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return _compiled(self.path, self._text)

    def get_data(self, path: Any) -> bytes:
        if path == self.path:
            return self._text.encode("utf-8", "surrogateescape")
        return super().get_data(path)
