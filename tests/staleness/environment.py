"""Changes of what is around a program: torch's flags, versions, the mesh, tensors, hooks, modes.

Where a change leaves the graph as it is, but kernels may compute otherwise, it has to miss too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

import torch

from lockstep.build import fingerprint as module

Around = Callable[[], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Change:
    """One change, and how a program is seen under it.

    Args:
        name: what is changed.
        around: entered around everything.
        inside: done to what the program built: (its module, its arguments).
        mesh: another mesh.
        rank: of another rank.
        same: it must hit.
    """

    name: str
    around: Around = contextlib.nullcontext
    inside: Callable[[Any, tuple[Any, ...]], None] | None = None
    mesh: tuple[tuple[str, int], ...] | None = None
    rank: int = 0
    same: bool = False


def _set(read: Callable[[], Any], write: Callable[[Any], Any], value: Any) -> Around:
    @contextlib.contextmanager
    def around() -> Iterator[None]:
        before = read()
        write(value)
        try:
            yield
        finally:
            write(before)

    return around


def _attribute(owner: Any, name: str, value: Any) -> Around:
    return _set(lambda: getattr(owner, name), lambda v: setattr(owner, name, v), value)


@contextlib.contextmanager
def _version(name: str, value: str) -> Iterator[None]:
    """Another version of a distribution."""
    true = metadata.version
    with mock.patch.object(metadata, "version", lambda n: value if n == name else true(n)):
        yield


@contextlib.contextmanager
def library(version: str) -> Iterator[None]:
    """A package of Python alone, installed in this version."""
    with TemporaryDirectory() as folder:
        site = Path(folder, "site-packages")
        info = site / f"tinylib-{version}.dist-info"
        info.mkdir(parents=True)
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: tinylib\nVersion: {version}\n"
        )
        (site / "tinylib.py").write_text(f"def scaled(x):\n    return x * {version}\n")
        sys.path.insert(0, str(site))
        module.distributions_of.cache_clear()
        sys.modules.pop("tinylib", None)
        try:
            yield
        finally:
            sys.path.remove(str(site))
            sys.modules.pop("tinylib", None)
            module.distributions_of.cache_clear()


@contextlib.contextmanager
def _global_hook() -> Iterator[None]:
    hook = torch.nn.modules.module.register_module_forward_hook(_halving)
    try:
        yield
    finally:
        hook.remove()


def _halving(layer: Any, args: Any, output: Any) -> Any:
    return output / 2


def _model(change: Callable[[Any], Any]) -> Callable[[Any, tuple[Any, ...]], None]:
    def inside(main: Any, arguments: tuple[Any, ...]) -> None:
        change(arguments[0])

    return inside


def _reordered(model: Any) -> None:
    table = dict(model.named_parameters())["temperature"]
    del model.temperature
    layers = model.layers
    del model.layers
    model.layers, model.temperature = layers, table


def _hooked(model: Any) -> None:
    model.layers[0].norm.register_forward_hook(_halving)


def _own_forward(model: Any) -> None:
    model.drop.forward = _twice


def _twice(x: Any) -> Any:
    return x * 2


def _argument(at: int, change: Callable[[Any], Any]) -> Callable[[Any, tuple[Any, ...]], None]:
    def inside(main: Any, arguments: tuple[Any, ...]) -> None:
        arguments[at].data = change(arguments[at].data)

    return inside


def _shorter(main: Any, arguments: tuple[Any, ...]) -> None:
    for tensor in arguments[1:]:
        tensor.data = tensor.data[:2]


def _default_device(main: Any, arguments: tuple[Any, ...]) -> None:
    torch.set_default_device("meta")


@contextlib.contextmanager
def _device_put_back() -> Iterator[None]:
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def _tf32() -> Iterator[None]:
    """The new way to ask for it: the old way can't be read any more while it lasts."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


_cpu = torch.backends
CHANGES = [
    Change("deterministic algorithms", _set(
        torch.are_deterministic_algorithms_enabled, torch.use_deterministic_algorithms, True)),
    Change("default dtype", _set(torch.get_default_dtype, torch.set_default_dtype, torch.float64)),
    Change("default device", _device_put_back, _default_device),
    Change("mkldnn off", _attribute(_cpu.mkldnn, "enabled", False)),
    Change("cudnn off", _attribute(_cpu.cudnn, "enabled", False)),
    Change("cudnn deterministic", _attribute(_cpu.cudnn, "deterministic", True)),
    Change("flash attention off", _set(
        _cpu.cuda.flash_sdp_enabled, _cpu.cuda.enable_flash_sdp, False)),
    Change("half sums", _attribute(
        _cpu.cuda.matmul, "allow_bf16_reduced_precision_reduction", False)),
    Change("attention's fast path off", _set(
        _cpu.mha.get_fastpath_enabled, _cpu.mha.set_fastpath_enabled, False)),
    Change("autocast", lambda: torch.autocast("cpu", dtype=torch.bfloat16)),
    Change("python -O", lambda: mock.patch.object(module, "OPTIMIZED", 1)),
    Change("version of a reached distribution", lambda: library("2.5")),
    Change("torch's version", lambda: mock.patch.object(torch, "__version__", "2.99.0")),
    Change("Python's version", lambda: mock.patch("platform.python_version", lambda: "3.99.0")),
    Change("the machine's kind", lambda: mock.patch("platform.machine", lambda: "riscv64")),
    Change("a hook of every module", _global_hook),
    Change("a mesh of other sizes", mesh=(("dp", 4),)),
    Change("another axis", mesh=(("dp", 2), ("pp", 1))),
    Change("another order of axes", mesh=(("pp", 1), ("dp", 2))),
    Change("buffer's dtype", inside=_model(lambda m: setattr(m, "clock", m.clock.double()))),
    Change("parameter's dtype", inside=_model(lambda m: m.layers[0].norm.double())),
    Change("parameter order", inside=_model(_reordered)),
    Change("requires_grad", inside=_model(
        lambda m: m.layers[0].proj.weight.requires_grad_(False))),
    Change("a gradient is there", inside=_model(
        lambda m: setattr(m.temperature, "grad", torch.ones(1)))),
    Change("tied parameters", inside=_model(
        lambda m: setattr(m.layers[0].proj, "bias", m.layers[0].norm.bias))),
    Change("evaluation", inside=_model(lambda m: m.eval())),
    Change("one layer in evaluation", inside=_model(lambda m: m.drop.eval())),
    Change("a hook of one module", inside=_model(_hooked)),
    Change("a forward of its own", inside=_model(_own_forward)),
    Change("a mark of a parameter", inside=_model(
        lambda m: setattr(m.temperature, "weighting", 0.9))),
    Change("a method of a library patched", lambda: mock.patch.object(
        torch.nn.Dropout, "forward", lambda self, x: x * 3)),
    Change("a function of a library patched", lambda: mock.patch.object(
        torch.nn.functional, "cross_entropy", lambda x, y, **k: (x * x).mean())),
    Change("batch size", inside=_shorter),
    Change("argument's dtype", inside=_argument(1, lambda x: x.double())),
    Change("argument's strides", inside=_argument(1, lambda x: x.T.contiguous().T)),
    # Last: torch can't be told to have no precision again.
    Change("tf32 of matmuls", _tf32),
    Change("matmul precision", _set(
        torch.get_float32_matmul_precision, torch.set_float32_matmul_precision, "medium")),
]  # fmt: skip
SAME = [
    Change("rank", rank=1, same=True),
    Change("HOME", lambda: mock.patch.dict("os.environ", HOME="/elsewhere"), same=True),
    Change("host name", lambda: mock.patch("socket.gethostname", lambda: "other"), same=True),
    Change("node's name", lambda: mock.patch("platform.node", lambda: "other"), same=True),
    Change("process id", lambda: mock.patch("os.getpid", lambda: 1), same=True),
    Change("time", lambda: mock.patch("time.time", lambda: 1e9), same=True),
    Change("user", lambda: mock.patch.dict("os.environ", USER="other"), same=True),
    Change("working directory", lambda: contextlib.chdir("/"), same=True),
    Change("seed", lambda: mock.patch("lockstep.checker.world.SEED", 12345), same=True),
    Change("parameters' values", inside=_model(lambda m: m.temperature.data.fill_(9)), same=True),
    Change("argument's values", inside=_argument(1, lambda x: x * 2), same=True),
]
