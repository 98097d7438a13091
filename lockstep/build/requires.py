"""What a rank must have to run a program, and the check of it before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib import import_module
from typing import Any

from lockstep import _compat
from lockstep.errors import ArtifactError

_BUILTIN_OPS = ("aten::", "prims::", "prim::", "_c10d_functional::")


def basic_requires(nodes: Iterable[Any]) -> dict[str, Any]:
    """Return this torch, exactly, and the graph's operators that torch itself does not register."""
    import torch

    overload = _compat.op_overload_type()
    nodes = list(nodes)
    names = {node.target.name() for node in nodes if isinstance(node.target, overload)}
    ops = sorted(name for name in names if not name.startswith(_BUILTIN_OPS))
    basic = {"torch": str(torch.__version__), "torch_git": torch.version.git_version, "ops": ops}
    kinds = {value.device.type for node in nodes for value in _tensors(node)} - {"cpu", "meta"}
    return basic | ({"accelerator": {"type": kinds.pop()}} if kinds else {})


def _tensors(node: Any) -> Iterator[Any]:
    """The tensors that a node of a captured graph gives."""
    import torch

    for value in _compat.pytree.tree_leaves(node.meta.get("val")):
        if isinstance(value, torch.Tensor):
            yield value


def accelerator_kind() -> dict[str, Any] | None:
    """Return what compiled kernels need of this process' accelerator; None: it has none."""
    import torch

    device = _compat.current_accelerator()
    if device is None:
        return None
    if device.type != "cuda":
        return {"type": device.type}
    major, minor = torch.cuda.get_device_capability(device)
    name = torch.cuda.get_device_name(device)
    return {"type": "cuda", "name": name, "capability": f"{major}.{minor}"}


def kernel_requires(features: Iterable[str]) -> dict[str, Any]:
    """Return what compiled kernels add: the machine, Python's ABI, and CPU features they use."""
    import platform
    import sysconfig

    return {
        "machine": platform.machine(),
        "python_abi": sysconfig.get_config_var("SOABI"),
        "cpu_features": sorted(features),
    }


def check_requires(requires: dict[str, Any], source: str) -> None:
    """Compare what a program requires with this process and machine; executes nothing of it.

    Args:
        requires: the manifest's "requires".
        source: what messages call the artifact.

    Raises:
        ArtifactError: LS210, naming the first thing that differs, both sides, and the way out.
    """
    import torch

    here = {"torch": str(torch.__version__), "torch_git": torch.version.git_version}
    here |= kernel_requires(())
    for key in ("torch", "torch_git", "machine", "python_abi"):
        if key in requires and requires[key] != here[key]:
            raise ArtifactError(
                f"built for another {key.replace('_', ' ')}",
                where=source,
                got=str(here[key]),
                want=str(requires[key]),
                why="a program is exact only for what it was built with",
                fix="build it again here, or run it where it was built for",
            )
    if "accelerator" in requires:
        _check_accelerator(requires["accelerator"], source)
    _check_features(requires.get("cpu_features", []), source)
    _check_ops(requires.get("ops", []), source)


def _check_accelerator(wanted: dict[str, Any], source: str) -> None:
    here = accelerator_kind() or {}
    if any(here.get(key) != value for key, value in wanted.items()):
        raise ArtifactError(
            "built for another accelerator",
            where=source,
            got=" ".join(here.values()) or "none",
            want=" ".join(wanted.values()),
            why="kernels run on the kind that they were compiled for",
            fix="build it again here, or run it where it was built for",
        )


def _check_features(wanted: list[str], source: str) -> None:
    from lockstep.build.cpu import cpu_features

    lacking = sorted(set(wanted) - cpu_features()) if wanted else []
    if lacking:
        raise ArtifactError(
            "the kernels use CPU instructions that this machine lacks",
            where=source,
            got=f"no {', '.join(lacking)}",
            want=", ".join(wanted),
            why="the first kernel would end the process with SIGILL",
            fix="build it on the oldest kind of machine that will load it",
        )


def _check_ops(names: list[str], source: str) -> None:
    import torch

    if any(name.startswith("lockstep::") for name in names):
        import_module("lockstep.spmd.point_to_point")  # registers them, and those of `ops`
    for name in names:
        space, _, rest = name.partition("::")
        op, _, overload = rest.partition(".")
        packet = getattr(getattr(torch.ops, space), op, None)
        if packet is None or not hasattr(packet, overload or "default"):
            raise ArtifactError(
                f"the step calls an operator that is not registered here: {name}",
                where=source,
                fix="import the module that registers it before the first call of the step",
            )
