"""Two agents of two ranks, each node with a disk of its own, and an S3 server between them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fleet_jobs import QUICK
from tests.ranks.ship_script import DATA
from tests.s3_server import BUCKET, s3_server
from tests.sources import ROOT

URL = f"s3://{BUCKET}/jobs"


class Job:
    """What became of it: by rank the results, and all events."""

    def __init__(self, folder: Path) -> None:
        self.rows = [json.loads((folder / f"result{rank}").read_text()) for rank in range(4)]
        files = sorted((folder / "runs/2").glob("*.jsonl"))
        self.events = [json.loads(line) for file in files for line in file.read_text().splitlines()]

    def of(self, *names: str) -> list[dict[str, Any]]:
        return [row for row in self.events if row["event"] in names]


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("ship")
    with s3_server(folder) as server:
        agents = [_agent(folder, node, server.environment()) for node in range(2)]
        for agent in agents:
            printed, _ = agent.communicate(timeout=200)
            assert agent.returncode == 0, printed
    return Job(folder)


def _agent(folder: Path, node: int, env: dict[str, str]) -> subprocess.Popen[str]:
    command = [
        sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2",
        "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{20000 + os.getpid() % 9000}",
        "--rdzv-id", folder.name, "-m", "tests.ranks.ship_script", URL,
    ]  # fmt: skip
    own = {
        "OMP_NUM_THREADS": "1",
        "RES_OPTIONS": "timeout:1 attempts:1",
        "LOCKSTEP_TIMING": QUICK + ",dead=60,store=60,start=120",
        "LOCKSTEP_STORE": str(folder / f"store{node}"),
        "LOCKSTEP_COPIES": str(folder / f"copies{node}"),
        "LAUNCH_FOLDER": str(folder),
    }
    return subprocess.Popen(
        command, cwd=ROOT, env={**os.environ, **env, **own}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def test_what_one_node_keeps_for_itself_is_shipped_to_the_other_once(job: Job) -> None:
    shipped = job.of("shipped")
    assert [row["bytes"] for row in shipped] == [len(DATA)]  # its other rank read the file
    builder, = {row["rank"] for row in job.of("built") if row["topic"] == "own/v0"}  # fmt: skip
    assert shipped[0]["from_ranks"] == [builder]
    assert shipped[0]["seconds"] > 0 and shipped[0]["mb_per_s"] > 0
    paths = {Path(row[0][1]).parent.name for row in job.rows}
    assert paths == {"store0", "store1"}


def test_what_a_url_keeps_is_fetched_once_by_each_node(job: Job) -> None:
    moved = [(row["event"], row["bytes"]) for row in job.of("put", "fetched")]
    assert sorted(moved) == [("fetched", len(DATA)), ("put", len(DATA))]
    (built,) = (row["rank"] for row in job.of("put"))
    (fetched,) = (row["rank"] for row in job.of("fetched"))
    assert {built // 2, fetched // 2} == {0, 1}
    assert {row[1][1] for row in job.rows} == {f"{URL}/shared.lockstep"}


def test_the_next_start_finds_both(job: Job) -> None:
    assert [row[2][0] for row in job.rows] == [row[3][0] for row in job.rows] == ["loaded"] * 4
    assert len(job.of("built")) == 2
