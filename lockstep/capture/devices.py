"""One accelerator: a program computes on the current one of its rank, so no index may be in it.

User code reads the current index as a number that is good for a device and for nothing else. What
touches a second accelerator is refused at its line.
"""

from __future__ import annotations

import contextlib
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from types import FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from lockstep import _compat
from lockstep._compat import pytree
from lockstep.capture.graph import InputSpec
from lockstep.capture.hooks import caller_frame, swapped
from lockstep.capture.origin import META, is_torch_file, is_user_file, line_of
from lockstep.capture.refusal import refuse
from lockstep.errors import CaptureError

_ONE = "a program computes on one accelerator, the current one of the rank that runs it"
# What torch says where an operator's tensors do not lie together.
_MIXED = ("two different devices", "at least two devices")
# What takes a device in a place of its own, and not by keyword alone.
_TAKES_DEVICE = {"device", "to", "cuda", "xpu"}
_ARITHMETIC = (
    "add sub mul truediv floordiv mod divmod pow lshift rshift and or xor radd rsub rmul rtruediv"
    " rfloordiv rmod rpow rlshift rrshift rand ror rxor neg pos abs invert lt le gt ge eq ne hash"
    " bool float"
).split()


class DeviceIndex(int):
    """The index of the current accelerator, as a step reads it: it names a device, no more.

    Another rank's is another number: a program that computes with it would be one rank's own.
    """


def _refusing(name: str) -> Any:
    original = getattr(int, name)

    def method(self: DeviceIndex, *args: Any) -> Any:
        frame = sys._getframe(1)
        if is_user_file(frame.f_code.co_filename):
            _refuse_number(frame)
        return original(self, *args)

    return method


for _name in _ARITHMETIC:
    setattr(DeviceIndex, f"__{_name}__", _refusing(f"__{_name}__"))


@contextlib.contextmanager
def on_one_accelerator() -> Iterator[None]:
    """Give user code on this thread the current accelerator alone, while inside."""
    swaps: dict[Any, Any] = {
        torch.accelerator.current_device_index: _current,
        torch.cuda.current_device: _current,
        torch.accelerator.set_device_index: _chosen,
        torch.cuda.set_device: _chosen,
        torch.cuda.device.__enter__: _entered,
        torch.cuda.device.__exit__: _left,
    }
    # What a program has put in the place of torch's own, to run without it, reads no index.
    own = {f: read for f, read in swaps.items() if is_torch_file(f.__code__.co_filename)}
    with swapped(own), _Indices(), _Moves():
        yield


def _current(original: Any, args: Any, kwargs: Any) -> Any:
    """The index; torch's own frames get a plain number."""
    now, frame = _compat.current_accelerator(), caller_frame()
    if now is None and _is_users(frame):
        _refuse_number(frame)
        return DeviceIndex(0)
    index = original(*args, **kwargs) if now is None else now.index
    return DeviceIndex(index) if _is_users(frame) else index


def _chosen(original: Any, args: Any, kwargs: Any) -> Any:
    frame = caller_frame()
    if not _is_users(frame):
        return original(*args, **kwargs)
    return _refuse_choice(frame, (*args, *kwargs.values())[0])


def _entered(original: Any, args: Any, kwargs: Any) -> Any:
    """`with torch.cuda.device(...)`: nothing to do for the current one, or for None."""
    if args[0].idx is not None and args[0].idx >= 0:
        _refuse_choice(caller_frame(), args[0].idx)
    args[0].prev_idx = -1


def _left(original: Any, args: Any, kwargs: Any) -> bool:
    return False


class _Indices(TorchFunctionMode):
    """Sees the index of a device where it is given as a number, and gives out `get_device()`."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        numbers = [*args, *(value for name, value in kwargs.items() if name != "device")]
        if getattr(func, "__name__", "") not in _TAKES_DEVICE and _holds_index(numbers):
            _refuse_number(_users(sys._getframe(1)))
        out = func(*args, **kwargs)
        if func is torch.Tensor.get_device and type(out) is int and out >= 0:
            return DeviceIndex(out)
        return out


class _Moves(_compat.dispatch_mode()):  # type: ignore[misc]
    """Sees what is moved to an accelerator: a constant that is moved there is only traced."""

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        device = (kwargs or {}).get("device")
        if device is None or device.type in ("cpu", "meta"):
            return func(*args, **(kwargs or {}))
        with _compat.not_computed():
            return func(*args, **(kwargs or {}))


def _holds_index(values: Iterable[Any]) -> bool:
    return any(
        isinstance(value, DeviceIndex)
        or (isinstance(value, (tuple, list)) and any(type(v) is DeviceIndex for v in value))
        for value in values
    )


def refuse_second(gm: torch.fx.GraphModule, inputs: Sequence[InputSpec]) -> None:
    """Refuse a graph that touches another accelerator than the current one.

    Args:
        inputs: what the placeholders are called.

    Raises:
        CaptureError: names the line, the operator or input, and both devices.
    """
    placeholders = gm.graph.find_nodes(op="placeholder")
    called = {node: spec.name for node, spec in zip(placeholders, inputs, strict=True)}
    current = _compat.current_accelerator()
    left_behind = None
    for node in gm.graph.nodes:
        device = next((d for d in _devices(node) if not _is_current(d, current)), None)
        if device is None:
            continue
        if node not in called:
            origin = node.meta.get(META)
            what = " and ".join(called[n] for n in node.all_input_nodes if n in called)
            refuse(_second(device, current, what or str(node.target), origin and origin.line))
            return
        left_behind = left_behind or (device, current, called[node], None)
    if left_behind is not None:
        refuse(_second(*left_behind))


def mixed(error: BaseException, line: str | None) -> CaptureError | None:
    """The error behind torch's own, where a line mixes tensors of two accelerators."""
    if not any(sign in str(error) for sign in _MIXED):
        return None
    devices = map(torch.device, re.findall(r"\b[a-z]+:\d+\b", str(error)))
    current = _compat.current_accelerator()
    other = next((d for d in devices if not _is_current(d, current)), None)
    if other is None:
        return None
    return _second(other, current, "an operand", line)


def _devices(node: torch.fx.Node) -> Iterator[torch.device]:
    """Where a node's results lie."""
    for value in pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            yield value.device


def _is_current(device: torch.device, current: torch.device | None) -> bool:
    if device.type in ("cpu", "meta"):
        return True
    return current is not None and device.type == current.type and device.index in (
        None, current.index,
    )  # fmt: skip


def _second(
    device: torch.device, current: torch.device | None, what: str, line: str | None
) -> CaptureError:
    if current is None:
        return CaptureError(
            f"the step computes on {device.type}, and this machine has no accelerator",
            where=line,
            got=f"{what} on {device}",
            want="a machine with the accelerator that the program is for",
            fix="build where there is one",
        )
    kind = current.type
    fixes = [f'leave the index out: device="{kind}", .to("{kind}"), or device=x.device']
    if line is None:
        fixes = [f'move it to the current one before the step: .to("{kind}")']
    if device.type == kind:
        fixes.append(f"torch.{kind}.set_device({device.index}) at the start, for all of this rank")
    return CaptureError(
        f"the step touches a second accelerator, {device}",
        where=line,
        got=f"{what} on {device}",
        want=f"{current}, the current one, and the CPU",
        why=_ONE,
        fix=fixes,
    )


def _refuse_choice(frame: FrameType | None, wanted: Any) -> None:
    """Refuse to make another accelerator the current one; the current one may be named."""
    current = _compat.current_accelerator()
    kind = current.type if current is not None else "cuda"
    device = torch.device(kind, wanted) if isinstance(wanted, int) else torch.device(wanted)
    if current is None or not _is_current(device, current):
        refuse(_second(device, current, "what follows", line_of(frame) or None))


def _refuse_number(frame: FrameType | None) -> None:
    refuse(
        CaptureError(
            "the step reads the index of its device as a number",
            where=line_of(frame),
            why="each rank's is another, and the program of one rank would be shipped to all",
            fix=[
                "use it as a device only: device=torch.cuda.current_device()",
                "read the rank as dist.get_rank() or mesh.get_local_rank(axis)",
            ],
        )
    )


def _is_users(frame: FrameType | None) -> bool:
    return frame is not None and is_user_file(frame.f_code.co_filename)


def _users(frame: FrameType | None) -> FrameType | None:
    while frame is not None and not is_user_file(frame.f_code.co_filename):
        frame = frame.f_back
    return frame
