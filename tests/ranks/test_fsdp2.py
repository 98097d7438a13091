"""Models in FSDP2 are taken into the graph with its collectives; what it leaves out is found.

The scripts are in `fsdp2.py`.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.build.artifact import read_manifest
from tests.ranks.launch import Ended, Torchrun

SCRIPT = "tests.ranks.fsdp2"
SAID = {
    "left on": ("LS514: gradients are not reduced when the step ends", "model.blocks.0.up.weight"),
    "whole": ("LS100: the parameters of model stay whole when the step ends",),
    "held": ("LS100: model holds gradients from before the step",),
    "offloaded": ("LS100: model is wrapped by fully_shard with", "CPUOffloadPolicy()"),
    "columns": ("a shard_placement_fn of another dimension",),
    "hooked": ("set_all_reduce_hook()",),
    "a factor": ("set_gradient_divide_factor() without set_force_sum_reduction_for_comms(True)",),
}


@pytest.fixture(scope="module")
def launches(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Ended]:
    """Every case on four ranks, and one that the builder compares with the step itself."""
    folder, found = tmp_path_factory.mktemp("fsdp2"), {}
    with Torchrun() as torchrun:
        for name in ("bitwise", "compared"):
            ended = torchrun.run(SCRIPT, name, folder=folder / name, world=4, limit=600.0)
            assert ended.code == 0, ended.report()
            found[name] = ended
    return found


def test_every_kind_trains_as_the_wrapper_itself(launches: dict[str, Ended]) -> None:
    for result in launches["bitwise"].results:
        cases = result["cases"]
        assert cases == {name: [] for name in cases} and len(cases) == 21
        assert result["summed"] == [0, 1, 2], "without its mean nothing is the same"


def test_nothing_that_decides_is_left_out_of_a_fingerprint(launches: dict[str, Ended]) -> None:
    """Else what a restart loads would be traced again."""
    paths = {event["path"] for event in launches["bitwise"].of("ready", role="built")}
    left_out = [read_manifest(Path(path))["fingerprint"]["not covered"] for path in paths]
    assert left_out == [[]] * len(paths) and len(paths) > 20


def test_each_program_is_one_for_all_ranks(launches: dict[str, Ended]) -> None:
    made: dict[tuple[str, str], set[str]] = {}
    for event in launches["bitwise"].of("ready"):
        made.setdefault((event["step"], event["variant"]), set()).add(event["digest"])
    assert len(made) > 20 and {len(digests) for digests in made.values()} == {1}


@pytest.mark.parametrize("case", SAID)
def test_what_no_program_holds_is_refused(case: str, launches: dict[str, Ended]) -> None:
    for result in launches["bitwise"].results:
        for text in SAID[case]:
            assert text in result["refused"][case], result["refused"][case]


def test_the_builder_finds_the_collectives_in_the_graph(launches: dict[str, Ended]) -> None:
    events = launches["compared"].of("eager", rank=0)
    assert {event["result"] for event in events} == {"equal"}
