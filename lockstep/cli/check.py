"""`lockstep check`: are a script's gradients right, and can its steps be one program?"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import tyro

from lockstep.cli.files import readable
from lockstep.cli.fixes import refuse_unwritable, write_fixes
from lockstep.errors import UsageError


def check(
    script: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="SCRIPT")],
    arguments: Annotated[
        tyro.conf.Positional[tuple[str, ...]], tyro.conf.arg(metavar="-- ARGS")
    ] = (),
    /,
    world_size: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    mesh: str = "",
    json: bool = False,
    format: Literal["text", "github"] = "text",
    fix: bool = False,
    patch: str = "",
    repair_s: float = 60.0,
    capture: bool = False,
    two_batches: bool = False,
    eager: bool = False,
    calls: Annotated[int | None, tyro.conf.arg(metavar="INT")] = None,
    timeout: float = 600.0,
) -> int:
    """Judge the gradients of a script's steps on a small job of this machine's CPU.

    The script's set-up runs on real gloo processes, as under torchrun. Each step is captured on
    every rank at its first call, and all ranks are then judged together; no step communicates.

    Args:
        script: the training script.
        arguments: its own arguments, after --.
        world_size: ranks of the job; 2 unless the mesh says it. For a capture 1, and only seen.
        mesh: sizes in place of those that the script gives ls.mesh, such as dp=2,tp=2.
        json: print one JSON object in place of text.
        format: github prints annotations for a pull request.
        fix: write the verified fixes to lockstep.patch, for git apply; no source is changed.
        patch: the file they are written to instead; - prints them, and the report to stderr.
        repair_s: seconds in which fixes are tried out, each by a run of the set-up; 0 tries none.
        capture: list only what keeps the steps from being captured, in one process.
        two_batches: list only the constants of each step that differ between its first two calls,
            as an int that was counted in the data; in one process.
        eager: only run each step beside its captured graph at its first call, on all ranks, and
            compare collectives and bits, as before a build; nothing is kept.
        calls: of steps, after which the script is left; 1, and 50 for a capture, two batches or
            eager. With more than one, steps run between: a wrong one may hang, or fail by itself.
        timeout: seconds after which it is stopped.
    """
    path = readable(script, "a training script")
    asked = {"--capture": capture, "--two-batches": two_batches, "--eager": eager}
    only, *others = [*(name for name, wanted in asked.items() if wanted), ""]
    if len(others) > 1:
        raise UsageError(f"{only} and {others[0]} are two questions", want="one of them")
    if only and (json or format != "text" or fix or patch or (mesh and not eager)):
        raise UsageError(f"{only} prints text, of the script's own mesh", fix="leave it out")
    if json and format != "text":
        raise UsageError(f"--json and --format {format} are two ways to print", want="one of them")
    out = patch or ("lockstep.patch" if fix else "")
    if out:
        refuse_unwritable(out, repair_s)
    from lockstep.spmd.mesh import parse_sizes

    sizes = parse_sizes(mesh, "--mesh")
    ranks = ranks_of(world_size, sizes, 1 if only and not eager else 2)
    most = calls if calls is not None else (50 if only else 1)
    if ranks < 1 or most < 1 or timeout <= 0 or repair_s < 0:
        raise UsageError(
            f"--world-size {ranks} --calls {most} --timeout {timeout:g} --repair-s {repair_s:g}",
            want="1 rank, 1 call, 1 s, 0 s of repair, or more",
        )
    if eager:
        return _eager(path, arguments, ranks, sizes, most, timeout)
    if only:
        return _capture(only.removeprefix("--"), path, arguments, ranks, most, timeout)
    from lockstep.report.check_text import as_annotations, as_json, as_text
    from lockstep.report.check_world import Job, check_world, importing_beside

    if sizes:
        print(f"{script}: the mesh has {mesh}, as --mesh says", file=sys.stderr)
    judged = check_world(Job(path, arguments, ranks, sizes, most, timeout), repair_s)
    show = as_json if json else as_annotations if format == "github" else as_text
    with importing_beside(path):  # where a file lies that a finding names by its short path
        print(show(judged), file=sys.stderr if out == "-" else sys.stdout)
    if out:
        write_fixes(judged.edits(), path, out)
    return 0 if judged.ok else 1


def ranks_of(given: int | None, sizes: dict[str, int], otherwise: int) -> int:
    """The number of ranks, by --world-size, else what --mesh needs at least."""
    if given is not None or not sizes:
        return otherwise if given is None else given
    product = 1
    for size in sizes.values():
        product *= size
    return product


def _capture(
    what: str, path: Path, arguments: tuple[str, ...], world: int, calls: int, timeout: float
) -> int:
    from lockstep.report.check import check_capture, lines
    from lockstep.report.moved_text import moved_lines

    checked = check_capture(path, arguments, world=world, calls=calls, limit_s=timeout, what=what)
    for line in lines(checked) if what == "capture" else moved_lines(checked):
        print(line)
    if not checked.steps:
        return 2
    return 1 if checked.obstacles else 0


def _eager(
    path: Path,
    arguments: tuple[str, ...],
    world: int,
    sizes: dict[str, int],
    calls: int,
    timeout: float,
) -> int:
    from lockstep.report.eager import compare_eager, lines

    compared = compare_eager(
        path, arguments, world=world, sizes=sizes, calls=calls, limit_s=timeout
    )
    for line in lines(compared):
        print(line)
    return 0 if compared.ok else 1
