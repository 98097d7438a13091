"""Finds the cases of a folder, and loads what they are written against."""

from __future__ import annotations

import importlib
import sys
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

HERE = Path(__file__).parent


def cases_in(folder: Path) -> list[Any]:
    """Import every case of a folder; each is a module with MESH, setup, loss and finish."""
    sys.path.insert(0, str(folder))
    import torch

    before = torch.get_default_dtype()
    found = [importlib.import_module(file.stem) for file in sorted(folder.glob("c[0-9]*_*.py"))]
    torch.set_default_dtype(before)
    return found


def adapter() -> ModuleType:
    """Load the adapter under a name that is no file of a user's.

    Its methods stand for a library's own, so lines are the case's that call them.
    """
    file = HERE / "adapter.py"
    spec = spec_from_loader("lockstep_fault_adapter", loader=None)
    assert spec is not None
    module = module_from_spec(spec)
    exec(compile(file.read_text(), "<adapter>", "exec"), module.__dict__)
    return module
