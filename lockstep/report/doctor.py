"""Whether this machine can build, load and run steps; each thing that is wrong with a remedy."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from lockstep.errors import LockstepError
from lockstep.report.job import run_job

GROUP_LIMIT_S, COMPILE_LIMIT_S, SKEW_S = 90.0, 60.0, 2.0
ROOM = 1 << 30  # bytes that a store should have left


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at.

    Args:
        what: "compiler", "store" and kin.
        ok: whether it is as it should be.
        got: what was found.
        remedy: what to do; empty where nothing is to be done.
    """

    what: str
    ok: bool
    got: str
    remedy: str = ""


def examine(group: bool = True) -> Iterator[Finding]:
    """Look at everything, one after the other; what can't be looked at is wrong.

    Args:
        group: whether to start two ranks that talk to each other; takes seconds.
    """
    looks: list[Callable[[], Finding]] = [versions, compiler, isa, accelerator, store, keys, clock]
    for look in [*looks, *([two_ranks] if group else [])]:
        try:
            yield look()
        except LockstepError as error:
            yield Finding(look.__name__, False, error.what, "; ".join(error.fixes) or str(error))
        except Exception as error:
            told = f"{type(error).__name__}: {error}"
            yield Finding(look.__name__, False, told, "see the error")


def versions() -> Finding:
    """Python, torch and Lockstep."""
    import torch

    from lockstep import __version__

    got = f"lockstep {__version__}, torch {torch.__version__}, Python {platform.python_version()}"
    if not hasattr(torch.compiler.config, "compile_on_one_rank"):
        return Finding("versions", False, got, "pip install 'torch>=2.14,<2.16'")
    return Finding("versions", True, got)


def compiler() -> Finding:
    """A C++ compiler whose library can be opened: what the back end `inductor` builds with."""
    name = os.environ.get("CXX") or next(filter(shutil.which, ("g++", "clang++")), None)
    remedy = 'apt-get install g++, or set CXX; backend="graph" needs none, nor does loading'
    if name is None or shutil.which(name) is None:
        return Finding("compiler", False, f"no {name or 'g++ and no clang++'}", remedy)
    with tempfile.TemporaryDirectory(prefix="lockstep-doctor-") as folder:
        source, library = Path(folder) / "one.cpp", Path(folder) / "one.so"
        source.write_text('extern "C" int one() { return 1; }\n')
        command = [name, "-O1", "-shared", "-fPIC", str(source), "-o", str(library)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMPILE_LIMIT_S)
        if done.returncode:
            return Finding("compiler", False, f"{name}: {done.stderr.strip()[:300]}", remedy)
        try:
            ctypes.CDLL(str(library))
        except OSError as error:
            text = "set TMPDIR to a folder that allows executing"
            return Finding("compiler", False, f"what {name} made can't be opened: {error}", text)
    told = subprocess.run([name, "--version"], capture_output=True, text=True, timeout=10)
    return Finding("compiler", True, told.stdout.partition("\n")[0] or name)


def isa() -> Finding:
    """The instruction sets that compiled kernels may use here, and need where they are loaded."""
    from lockstep.build.cpu import kernel_features

    found = sorted(kernel_features())
    wide = [name for name in ("avx512f", "avx2", "asimd", "sve") if name in found]
    got = f"{platform.machine()}, {', '.join(wide) or 'no vector unit that is known'}"
    remedy = "" if found else "mount /proc: what a kernel needs can't be compared without it"
    return Finding("instruction sets", bool(found), got, remedy)


def accelerator() -> Finding:
    """The accelerators that torch sees; none is no fault."""
    import torch

    if not torch.accelerator.is_available():
        return Finding("accelerator", True, "none: steps run on the CPU")
    kind = torch.accelerator.current_accelerator()
    return Finding("accelerator", True, f"{torch.accelerator.device_count()} x {kind}")


def store() -> Finding:
    """The default store: whether artifacts can be kept there, and nobody else can write it."""
    from lockstep.build.ownership import refuse_if_open

    named = os.environ.get("LOCKSTEP_STORE") or "~/.cache/lockstep"
    if "://" in named:
        return _remote(named)
    path = Path(named).expanduser()
    if path.is_file():
        refuse_if_open(path)
        return Finding("store", os.access(path, os.R_OK), f"{path}, a file that is only read")
    there = path if path.is_dir() else next(p for p in path.parents if p.is_dir())
    if path.is_dir():
        refuse_if_open(path)
    try:
        with tempfile.NamedTemporaryFile(dir=there, prefix=".doctor-"):
            pass
    except OSError as error:
        text = f"chown or chmod u+rwx {there}, or set LOCKSTEP_STORE to a folder of yours"
        return Finding("store", False, f"{path} takes nothing: {error.strerror}", text)
    room = shutil.disk_usage(there).free
    got = f"{path}, {room / 1e9:.0f} GB free"
    remedy = "" if room >= ROOM else "lockstep store gc --limit SIZE, or a larger disk"
    return Finding("store", room >= ROOM, got, remedy)


def _remote(url: str) -> Finding:
    import fsspec

    system, path = fsspec.core.url_to_fs(url)
    remedy = f"see the rights of this user for {url}, and its credentials in the environment"
    try:
        name = f"{path.rstrip('/')}/.doctor-{os.getpid()}"
        system.pipe_file(name, b"doctor")
        system.rm_file(name)
    except Exception as error:
        return Finding("store", False, f"{url}: {type(error).__name__}: {error}", remedy)
    return Finding("store", True, f"{url}, written to and cleaned")


def keys() -> Finding:
    """The keys that artifacts are signed with and trusted by, where they are set."""
    from lockstep.build.keys import SIGN, TRUST
    from lockstep.build.signature import sealer

    sealer()
    named = [f"{name}={os.environ[name]}" for name in (SIGN, TRUST) if os.environ.get(name)]
    missing = [word for word in named if not Path(word.partition("=")[2]).expanduser().exists()]
    if missing:
        return Finding("keys", False, f"{', '.join(missing)}: missing", "lockstep keygen FILE")
    return Finding("keys", True, ", ".join(named) or "none: artifacts are not signed")


def clock() -> Finding:
    """Whether this machine's clock and that of the store's file system agree."""
    named = Path(os.environ.get("LOCKSTEP_STORE") or "~/.cache/lockstep").expanduser()
    there = next((p for p in (named, *named.parents) if p.is_dir()), Path.cwd())
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(tempfile.NamedTemporaryFile(dir=there, prefix=".doctor-"))
        except OSError:
            file = stack.enter_context(tempfile.NamedTemporaryFile(prefix=".doctor-"))
        apart = abs(Path(file.name).stat().st_mtime - time.time())
    got = f"{apart:.2f} s from {there}'s"
    remedy = "" if apart <= SKEW_S else "run chrony or ntpd: ages of artifacts would be told wrong"
    return Finding("clock", apart <= SKEW_S, got, remedy)


def two_ranks() -> Finding:
    """Two ranks of this machine that form a group and add a number up, by gloo."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    command = [sys.executable, *launch, "-m", "lockstep.report.doctor_rank"]
    done = run_job(command, {**os.environ, "OMP_NUM_THREADS": "1"}, GROUP_LIMIT_S)
    if done.code == 0:
        return Finding("group", True, f"2 gloo ranks met in {done.seconds:.1f} s")
    how = "no answer" if done.code is None else f"exit code {done.code}"
    lines = [line for line in done.output.splitlines() if "Error" in line] or [done.tail(1)]
    remedy = (
        "set GLOO_SOCKET_IFNAME to a network interface that is up (ip link), and see that the "
        "host's own name resolves (/etc/hosts)"
    )
    return Finding("group", False, f"{how}: {lines[-1].strip()[:300]}", remedy)
