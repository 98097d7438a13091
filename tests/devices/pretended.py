"""A CUDA device that is not there: torch generates its code and Triton its binaries, nothing runs.

It is for a process of its own: torch remembers what it was told of devices.
"""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import torch

from lockstep import _compat

PROPERTIES = types.SimpleNamespace(
    name="Pretended", major=9, minor=0, multi_processor_count=132, warp_size=32,
    regs_per_multiprocessor=65536, max_threads_per_multi_processor=2048,
    max_threads_per_block=1024, total_memory=80 << 30, shared_memory_per_block_optin=232448,
    shared_memory_per_multiprocessor=233472, L2_cache_size=50 << 20, gcnArchName="",
)  # fmt: skip


class Driver:
    """What Triton asks of a driver when it compiles for sm_90."""

    def get_current_target(self) -> Any:
        from triton.backends.compiler import GPUTarget

        return GPUTarget("cuda", 90, 32)

    def get_current_device(self) -> int:
        return 0


class Guard:
    """In place of the guard that makes a device the current one."""

    def __init__(self, *_: Any) -> None: ...

    def __enter__(self) -> None: ...

    def __exit__(self, *_: Any) -> None: ...


class Loader:
    """In place of torch's loader of binaries."""

    loaded: ClassVar[list[tuple[str, int]]] = []

    @staticmethod
    def _load_kernel(path: str, entry: str, shared: int, device: int) -> tuple[int, ...]:
        return (1, 2, 32, 0)

    @staticmethod
    def _unload_kernel(_: int) -> None: ...


def pretend(index: int) -> None:
    """Be a rank whose accelerator is cuda:index, from now on."""
    import torch._dynamo.device_interface as interfaces
    import torch._inductor.codegen.wrapper as wrapper
    import torch._inductor.config as config
    import torch._inductor.runtime.static_triton_launcher as static
    import torch._inductor.runtime.triton_helpers as helpers
    from triton.runtime.driver import driver

    here = torch.device("cuda", index)
    _compat.current_accelerator = lambda: here
    wrapper._coor_current_accelerator = lambda: here
    wrapper.PythonWrapperCodegen.generate_and_run_autotune_block = lambda self: None
    torch.accelerator.current_device_index = lambda: index
    torch.cuda.current_device = lambda: index
    torch.cuda.is_initialized = lambda: True
    torch.cuda.get_device_properties = lambda *_: PROPERTIES
    torch.cuda.get_device_capability = lambda *_: (9, 0)
    torch.cuda.get_device_name = lambda *_: PROPERTIES.name
    cuda = interfaces.CudaInterface
    for kind in (cuda, cuda.Worker):
        kind.get_device_properties = staticmethod(lambda *_: PROPERTIES)
        kind.current_device = staticmethod(lambda: index)
    cuda.get_compute_capability = staticmethod(lambda *_: 90)
    cuda.is_available = staticmethod(lambda: True)
    interfaces.DeviceGuard = Guard
    helpers.set_driver_to_gpu = lambda: None
    static.StaticallyLaunchedCudaKernel.C_impl = Loader
    config.compile_threads = 1
    driver.set_active(Driver())


@contextlib.contextmanager
def started() -> Iterator[list[tuple[Any, ...]]]:
    """Load and start a program's binaries by nobody while inside; yields what was started."""
    calls: list[tuple[Any, ...]] = []
    original = _compat.cubin_launcher

    def load(path: str, entry: str, shared: int, device: int) -> tuple[int, ...]:
        assert Path(path).read_bytes()[:4] == b"\x7fELF"
        Loader.loaded.append((entry, device))
        return Loader._load_kernel(path, entry, shared, device)

    _compat.cubin_launcher = lambda: (load, lambda *call: calls.append(call))
    try:
        yield calls
    finally:
        _compat.cubin_launcher = original
