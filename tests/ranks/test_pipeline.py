"""Two stages on two real ranks: one process' losses, one file with both roles, lost messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from lockstep.build.artifact import read_manifest
from lockstep.build.bundle import Bundle, pack_bundle
from tests.pipeline.compare import LIMIT, apart
from tests.ranks.launch import Torchrun

pytestmark = pytest.mark.timeout(400)


def test_two_stages_train_as_one_process_and_load_from_one_file(tmp_path: Path) -> None:
    case = "pp=2,dp=1 1 graph 2 2"
    store, bundle = tmp_path / "a" / "store", tmp_path / "step.lockstep"
    with Torchrun() as torchrun:
        script = "tests.pipeline.train"
        built = torchrun.run(script, f"{case} fault", folder=tmp_path / "a", limit=180.0)
        assert all(built.results), built.report()
        files = [path for path in store.glob("*.lockstep")
                 if read_manifest(path)["step"].endswith("train_step")]  # fmt: skip
        bundle.write_bytes(pack_bundle({path.name: path.read_bytes() for path in files}))
        env = {"LOCKSTEP_STORE": str(bundle)}
        loaded = torchrun.run(script, case, folder=tmp_path / "b", limit=180.0, env=env)

    # as one process, on both ranks, built or loaded
    results = [one for (one,) in built.results]
    assert max(map(apart, results)) < LIMIT
    assert built.results == loaded.results
    assert results[0]["told"] == results[1]["told"]
    held = [set(one["held"]) for one in results]
    assert not held[0] & held[1] and "output.weight" in held[1]

    # one file, two roles, nothing built at the second start
    assert loaded.code == 0, loaded.report()
    with bundle.open("rb") as stream:
        assert sorted(Bundle(bundle, stream).roles.values()) == ["pp=0", "pp=1"]
    ready = {(r["program_of"], r["by"]) for r in loaded.of("ready")}
    assert ready == {("pp=0", None), ("pp=1", None)} and loaded.of("stage") == []
    sent = {m["fingerprint"]["options role"]: m["messages"] for m in map(read_manifest, files)}
    told = {role: [(m["op"], m["place"], m["number"]) for m in rows] for role, rows in sent.items()}
    assert told == {
        "pp=0": [("send", 1, 0), ("send", 1, 1), ("recv", 1, 0), ("recv", 1, 1)],
        "pp=1": [("recv", -1, 0), ("send", -1, 0), ("recv", -1, 1), ("send", -1, 1)],
    }

    # a message that the other role does not take ends both ranks, in words
    assert built.code != 0
    text = "".join(built.texts)
    assert "pp=0 sends message 1 to 1 along pp, and pp=1 does not take it" in text
    assert 'ls.recv(like, "pp", from_=-1) in the program of pp=1' in text
