"""The C++ kernels of one lowering: compiled beside its code generation, each once, on all cores.

Generated code names a kernel as soon as its part is made; the C++ compiler takes it at once, while
code is generated for the parts that follow.
"""

from __future__ import annotations

import contextvars
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from lockstep import _compat
from lockstep.build.rewrite import Kernel
from lockstep.build.whole import is_whole


class Libraries:
    """What is being compiled; of use inside `compiling` alone.

    Args:
        pool: threads that each wait for a compiler.
    """

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._started: dict[str, Future[str]] = {}

    def start(self, argtypes: Iterable[str], source: str) -> None:
        """Have a kernel compiled, unless it is already."""
        kernel = Kernel(tuple(argtypes), source)
        if kernel.digest not in self._started:
            # The compiler's options are those of this thread's context.
            context = contextvars.copy_context()
            self._started[kernel.digest] = self._pool.submit(
                context.run, _compat.built_library, list(kernel.argtypes), source
            )

    def wait(self) -> None:
        """Wait until all that was started is compiled; raises what a compiler raised."""
        for started in self._started.values():
            started.result()

    def read(self, digest: str) -> bytes:
        """The library of a kernel that was started."""
        return Path(self._started[digest].result()).read_bytes()


@contextmanager
def compiling() -> Iterator[Libraries]:
    """Have C++ kernels compiled as code that is generated inside names them.

    On as many threads as the user lets the compiler have, by default one a core.
    """
    pool = ThreadPoolExecutor(_compat.compile_threads(), thread_name_prefix="lockstep-compile")
    libraries = Libraries(pool)
    try:
        with _compat.libraries_checked(is_whole), _compat.kernels_given_to(libraries.start):
            yield libraries
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
