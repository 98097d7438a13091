"""Where a node comes from: the user's file and line, the module's path, and the phase.

A backward node is charged to the forward line whose derivative it is: each autograd node is tagged
with the line that made it, and the engine says which autograd node is running.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lockstep import _compat
from lockstep.capture.hooks import swapped

META = "lockstep"
_TORCH = str(Path(torch.__file__).parent) + os.sep
_OURS = str(Path(__file__).parents[1]) + os.sep
# Of ours, what a step is written in: its lines are told, and its code is in the fingerprint.
_WRITTEN_IN = tuple(_OURS + part + os.sep for part in ("models", "parallel", "trainer"))
_STDLIB = str(Path(os.__file__).parent) + os.sep
_SITE = _STDLIB + "site-packages" + os.sep


@dataclass(frozen=True)
class Origin:
    """One node's origin. `line` is "file:number", `module` a path such as "model.layers.0"."""

    line: str
    module: str
    phase: str


def is_user_file(filename: str) -> bool:
    """Whether code in this file is the user's (or a step's building block), not torch's or ours."""
    if filename.startswith("<") or filename.startswith(_TORCH):
        return False
    if filename.startswith(_OURS):
        return filename.startswith(_WRITTEN_IN)
    return filename.startswith(_SITE) or not filename.startswith(_STDLIB)


def is_library_file(filename: str) -> bool:
    """Whether code in this file is an installed package's, other than torch's."""
    return f"{os.sep}site-packages{os.sep}" in filename and not filename.startswith(_TORCH)


def is_torch_file(filename: str) -> bool:
    """Whether code in this file is torch's."""
    return filename.startswith(_TORCH)


def is_own_file(filename: str) -> bool:
    """Whether code in this file is Lockstep's, other than what steps are written in."""
    return filename.startswith(_OURS) and not filename.startswith(_WRITTEN_IN)


@functools.cache
def short_path(filename: str) -> str:
    """A file's path below the import root it belongs to: the same on every machine."""
    roots = sorted({str(Path(p).absolute()) for p in (".", *sys.path)}, key=len, reverse=True)
    for root in roots:
        if filename.startswith(root + os.sep):
            return filename[len(root) + 1 :]
    return Path(filename).name


def user_frame(frame: FrameType | None, stop: FrameType | None = None) -> FrameType | None:
    """The innermost frame of the user's code from `frame` outwards, before `stop`.

    A helper that assigns `__tracebackhide__`, as pytest has it, lets its caller stand for it.
    """
    while frame is not None and frame is not stop:
        code = frame.f_code
        if is_user_file(code.co_filename) and "__tracebackhide__" not in code.co_varnames:
            return frame
        frame = frame.f_back
    return None


def line_of(frame: FrameType | None) -> str:
    """A frame as "file:number"; "" for None."""
    if frame is None:
        return ""
    return f"{short_path(frame.f_code.co_filename)}:{frame.f_lineno}"


def user_line() -> str:
    """The user's line that is running now."""
    return line_of(user_frame(sys._getframe(1)))


class OriginTracker:
    """Watches a trace and gives every new graph node its origin.

    Args:
        module_paths: id of a module -> its path from the step's arguments.
    """

    def __init__(self, module_paths: dict[int, str]) -> None:
        self._paths = module_paths
        self._modules: list[str] = []
        self._backward: FrameType | None = None
        self._any_backward = False
        self._applied = False  # inside a Function's forward, which turns gradients off by itself
        self.backward_lines: list[str] = []

    def current(self) -> Origin:
        """The origin of an operation that runs now."""
        if self._backward is not None:
            return self._backward_origin()
        line = line_of(user_frame(sys._getframe(1)))
        late = self._any_backward and not (torch.is_grad_enabled() or self._applied)
        return Origin(
            line, self._modules[-1] if self._modules else "", "after" if late else "forward"
        )

    def _backward_origin(self) -> Origin:
        inner = user_frame(sys._getframe(2), stop=self._backward)
        node = _compat.current_autograd_node()
        tag = node.metadata.get(META) if node is not None else None
        module = tag.module if tag is not None else ""
        if inner is not None:
            return Origin(line_of(inner), module, "backward")
        line = tag.line if tag is not None else line_of(user_frame(self._backward))
        return Origin(line, module, "backward")

    @contextlib.contextmanager
    def applying(self) -> Iterator[None]:
        """Take what a Function's forward does for a part of the forward that applies it."""
        outer, self._applied = self._applied, self._applied or torch.is_grad_enabled()
        try:
            yield
        finally:
            self._applied = outer

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Observe everything that is traced inside."""
        handles = [
            torch.nn.modules.module.register_module_forward_pre_hook(self._enter),
            torch.nn.modules.module.register_module_forward_hook(self._leave, always_call=True),
        ]
        backwards: dict[FunctionType, Any] = {
            torch.autograd.backward: self._run_backward,  # type: ignore[dict-item]
            torch.autograd.grad: self._run_backward,  # type: ignore[dict-item]
        }
        try:
            with _NodeTagger(self), swapped(backwards), _compat.on_create_node(self._stamp):
                with _tagging_functions(self):
                    yield
        finally:
            for handle in handles:
                handle.remove()

    def _stamp(self, node: torch.fx.Node) -> None:
        if node.op not in ("placeholder", "output"):
            node.meta[META] = self.current()

    def _enter(self, module: torch.nn.Module, _args: Any) -> None:
        self._modules.append(self._paths.get(id(module), ""))

    def _leave(self, _module: torch.nn.Module, _args: Any, _output: Any) -> None:
        if self._modules:
            self._modules.pop()

    def _run_backward(self, original: Any, args: Any, kwargs: Any) -> Any:
        outer, self._backward = self._backward, sys._getframe(0)
        self._any_backward = True
        self.backward_lines.append(user_line())
        try:
            return original(*args, **kwargs)
        finally:
            self._backward = outer


class _NodeTagger(TorchFunctionMode):
    """Tags the autograd nodes that each torch function made with the line that called it."""

    def __init__(self, tracker: OriginTracker) -> None:
        super().__init__()
        self._tracker = tracker

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        leaves = out if isinstance(out, (tuple, list)) else (out,)
        roots = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        fresh = [t.grad_fn for t in roots if t.requires_grad and t.grad_fn is not None]
        if fresh:
            _tag(fresh, self._tracker.current())
        return out


@contextlib.contextmanager
def _tagging_functions(tracker: OriginTracker) -> Iterator[None]:
    """Tag what `Function.apply` makes with its own line: no mode sees the call, and the next torch
    function's line would be taken. An `apply` that was looked up before is not seen."""
    raw = vars(torch.autograd.Function)["apply"]

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        with tracker.applying():
            out = raw.__get__(None, cls)(*args, **kwargs)
        leaves = out if isinstance(out, (tuple, list)) else (out,)
        fresh = [t.grad_fn for t in leaves if isinstance(t, torch.Tensor) and t.requires_grad]
        _tag([node for node in fresh if node is not None], tracker.current())
        return out

    torch.autograd.Function.apply = classmethod(apply)  # type: ignore[assignment]
    try:
        yield
    finally:
        torch.autograd.Function.apply = raw


def _tag(nodes: list[Any], origin: Origin) -> None:
    """Tag nodes and those behind them, up to the ones that carry a tag already."""
    while nodes:
        node = nodes.pop()
        if node is None or META in node.metadata:
            continue
        node.metadata[META] = origin
        nodes.extend(parent for parent, _ in node.next_functions)
