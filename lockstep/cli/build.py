"""`lockstep build`: make a script's artifacts ahead of time, on one machine, for a whole world."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from lockstep.cli.check import ranks_of
from lockstep.cli.files import readable
from lockstep.errors import UsageError

if TYPE_CHECKING:
    from lockstep.ahead.build import Ahead, Built, Job


def build(
    script: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCRIPT")],
    arguments: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="-- ARGS")
    ] = (),
    /,
    world_size: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    mesh: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    out: Annotated[str, tyro.conf.arg(aliases=["-o"])] = "",
    store: str = "",
    steps: str = "",
    device: str = "",
    real: bool = False,
    all_coordinates: bool = False,
    calls: int = 1000,
    timeout: float = 3600.0,
) -> int:
    """Build the artifacts of a script's steps ahead of time, without the cluster that runs them.

    The script runs unmodified as one rank of a world that is not there, below fake tensors:
    initialisation computes nothing and takes no memory. Each step is captured, checked and lowered
    at its first call. The same script then runs as other ranks, and their graphs and code must be
    the same. torchrun finds the artifacts in the store, and traces nothing.

    Args:
        script: the training script.
        arguments: its own arguments, after --.
        world_size: ranks of the job; what the mesh says, else 1.
        mesh: sizes in place of those that the script gives ls.mesh, such as dp=128,tp=8; given
            several times, artifacts for each.
        out: a bundle file that gets the same artifacts; LOCKSTEP_STORE=FILE reads it.
        store: the store they go to, in place of the job's own.
        steps: names of those that are built, separated by commas; all that the script makes.
        device: the kind that the job computes on, which this machine must have: cpu, cuda.
        real: run the set-up truly, where it needs values; only steps compute nothing then.
        all_coordinates: trace every rank; in worlds of more than 16 it is a sample.
        calls: of steps, after which the script is left.
        timeout: seconds after which it is stopped, for each mesh.
    """
    path = readable(script, "a training script")
    if out and not Path(out).parent.is_dir():
        raise UsageError(f"-o {out}: there is no such folder", got=str(Path(out).parent))
    from lockstep.ahead.build import Job
    from lockstep.spmd.mesh import parse_sizes

    jobs = []
    for sizes in [parse_sizes(text, "--mesh") for text in mesh] or [{}]:
        world = ranks_of(world_size, sizes, 1)
        if world < 1 or calls < 1 or timeout <= 0:
            raise UsageError(
                f"--world-size {world} --calls {calls} --timeout {timeout:g}",
                want="1 rank, 1 call, 1 s, or more",
            )
        names = tuple(filter(None, steps.split(",")))
        how = (names, store or None, device, real, all_coordinates, calls, timeout)
        jobs.append(Job(path, arguments, world, sizes, *how))
    _refuse_device(device)
    made = [_one(job) for job in jobs]
    code = max(ahead.code for ahead in made)
    if out and code == 0:
        _write_bundle(Path(out), [built for ahead in made for built in ahead.built])
    return code


def _refuse_device(device: str) -> None:
    """Refuse a device that is not here: what is compiled for it needs its compiler and its kind."""
    from lockstep.spmd.mesh import default_device_type

    here = default_device_type()
    if device not in ("", "cpu", here):
        raise UsageError(
            f"--device {device}: this machine has none",
            got="no accelerator" if here == "cpu" else f"an accelerator of kind {here}",
            why="kernels are tuned and compiled for the kind of device that is there",
            fix=f"run lockstep build on a machine with one {device} device",
        )


def _one(job: Job) -> Ahead:
    from lockstep.ahead.build import build as build_ahead
    from lockstep.ahead.show import Shown, lines

    with Shown(sys.stderr) as shown:
        ahead = build_ahead(job, shown.hear)
    for line in lines(job, ahead):
        print(line)
    if ahead.code:
        print(ahead.failed or ahead.refused, file=sys.stderr)
    return ahead


def _write_bundle(path: Path, built: list[Built]) -> None:
    from lockstep.build.bundle import pack_bundle
    from lockstep.fleet.stores import write_whole

    data = pack_bundle({one.path.rpartition("/")[2]: one.data for one in built})
    write_whole(path, data)
    print(f"{len(built)} artifact(s), {len(data) / 1e6:.1f} MB -> {path}")
