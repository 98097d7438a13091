"""Lower one step for a CUDA device that is not there; print what came out, as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any

import torch
from torch import nn

from lockstep import _compat
from lockstep.build.artifact import Artifact, pack
from lockstep.build.backends import code_of, lower
from lockstep.capture.capture import capture
from lockstep.run.loader import load_program
from tests.devices.pretended import Loader, pretend, started


def step(model: nn.Module, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        mask = torch.ones(8, device="cuda") * torch.arange(8, device=torch.cuda.current_device())
        return (model(x) + mask).softmax(-1) + torch.rand(8, device=x.device)


def graph_on(device: str) -> Any:
    with _compat.fake_mode():
        layers = nn.Linear(8, 8, device=device), nn.GELU(), nn.LayerNorm(8, device=device)
        model, x = nn.Sequential(*layers), torch.zeros(4, 8, device=device)
    return capture(step, model, x)


def main(index: int, whole: bool) -> None:
    """Arguments: the index of this rank's accelerator; whether to make and load an artifact."""
    pretend(index)
    graph = graph_on(f"cuda:{index}")
    text, sources = code_of(graph, "inductor")
    told = {"graph": lower(graph, "graph").text, "text": text, "sources": sources}
    if whole:
        told |= made_and_loaded(graph, text, sources)
    print(json.dumps(told))


def made_and_loaded(graph: Any, text: str, sources: dict[str, str]) -> dict[str, Any]:
    program = lower(graph, "inductor")
    artifact = Artifact.from_bytes(pack({}, program).to_bytes())
    with started() as calls:
        load_program(artifact)
        return {
            "same": program.text == text and program.sources == sources,
            "requires": program.requires,
            "blobs": sorted(artifact.blobs),
            "loaded": Loader.loaded,
            "started": start_all(artifact, calls),
        }


def start_all(artifact: Artifact, calls: list[Any]) -> list[Any]:
    """Start each kernel as its program does, by the signature of its source."""
    from lockstep.run.cubins import cubins

    cubin = cubins(artifact.blobs, "here")
    for name in artifact.blobs:
        if name.endswith(".cubin"):
            launch = json.loads(artifact.blobs[name.replace(".cubin", ".json")])
            taken = launch["launcher"].partition("(")[2].partition(")")[0].split(", ")
            given = [4 if "numel" in parameter else parameter for parameter in taken]
            cubin(name.removeprefix("kernels/").removesuffix(".cubin")).run(*given, stream=7)
    return calls


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:] == ["whole"])
