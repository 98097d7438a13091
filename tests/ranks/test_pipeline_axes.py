"""Two stages beside another axis on four real ranks: one process' losses and gradients."""

from __future__ import annotations

import pytest

from tests.pipeline.compare import LIMIT, apart, ends_agree
from tests.ranks.launch import Ended, Torchrun

pytestmark = pytest.mark.timeout(400)

CASES = {
    "tensor parallel": "pp=2,tp=2 1 graph 2 2 sequence tied",
    "fully sharded": "pp=2,fsdp=2 1 graph 2 2 tied",
    "context parallel": "pp=2,cp=2 1 graph 2 2",
    "tied ends left alone": "pp=2,tp=2 1 graph 2 2 tied alone",
}
WRONG = "tied ends left alone"


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    folder = tmp_path_factory.mktemp("stages")
    with Torchrun() as torchrun:
        ended = torchrun.run(
            "tests.pipeline.train", *CASES.values(), folder=folder, world=4, limit=300.0
        )
    assert ended.code == 0, ended.report()
    return ended


@pytest.mark.parametrize("name", CASES)
def test_stages_train_as_one_process_unless_tied_ends_are_left_alone(
    ended: Ended, name: str
) -> None:
    results = [rank[list(CASES).index(name)] for rank in ended.results]
    far = max(map(apart, results))
    assert far < LIMIT if name != WRONG else far > 1000 * LIMIT
    assert len({str(one["told"]) for one in results}) == 1
    assert ends_agree(results)
    assert any(one["shared"] for one in results) == ("tied" in CASES[name] and name != WRONG)


def test_each_stage_is_one_program_that_one_of_its_ranks_built(ended: Ended) -> None:
    ready = ended.of("ready")
    assert len(ready) == 4 * len(CASES)
    assert len({row["digest"] for row in ready}) == 2 * len(CASES)
    assert [row["role"] for row in ready].count("built") == 2 * len(CASES)
