"""`lockstep doctor`: what is well is said, what is wrong has a remedy and exit code 1."""

from __future__ import annotations

import json
import stat

import pytest

from lockstep.cli import main
from lockstep.report import doctor
from lockstep.report.job import Outcome


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("LOCKSTEP_STORE", str(tmp_path / "store"))
    return tmp_path / "store"


def test_a_sound_machine_is_exit_code_0(store, monkeypatch, capsys):
    monkeypatch.setattr(doctor, "two_ranks", lambda: doctor.Finding("group", True, "met"))
    assert main(["doctor"]) == 0
    rows = capsys.readouterr().out.splitlines()
    assert [row.split()[0] for row in rows] == ["ok"] * 8
    assert rows[-1].split() == ["ok", "group", "met"]


def test_what_is_wrong_has_a_remedy(store, monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setenv("LOCKSTEP_STORE", "/proc/nothing/there")
    assert main(["doctor", "--alone", "--json"]) == 1
    found = {one["what"]: one for one in json.loads(capsys.readouterr().out)}
    wrong = {name for name, one in found.items() if not one["ok"]}
    assert wrong == {"compiler", "store"}
    assert found["compiler"]["remedy"].startswith("apt-get install g++")
    assert "takes nothing" in found["store"]["got"]
    assert all(one["remedy"] for name, one in found.items() if name in wrong)


def test_a_store_that_others_can_write_is_wrong(store):
    store.mkdir()
    assert doctor.store().ok
    store.chmod(stat.S_IRWXU | stat.S_IRWXO)
    (found,) = [one for one in doctor.examine(group=False) if one.what == "store"]
    assert not found.ok and "can write" in found.got and found.remedy


def test_a_store_at_a_url_is_written_to_and_cleaned(monkeypatch):
    monkeypatch.setenv("LOCKSTEP_STORE", "memory://artifacts")
    found = doctor.store()
    assert found.ok and found.got == "memory://artifacts, written to and cleaned"
    monkeypatch.setenv("LOCKSTEP_STORE", "nosuch://x")
    wrong = next(one for one in doctor.examine(group=False) if one.what == "store")
    assert not wrong.ok


@pytest.mark.parametrize(("code", "told"), [(1, "exit code 1: RuntimeError"), (None, "no answer")])
def test_ranks_that_do_not_meet(code, told, monkeypatch):
    ended = Outcome(code, "torchrun\nRuntimeError: no", 1.0)
    monkeypatch.setattr(doctor, "run_job", lambda *_: ended)
    found = doctor.two_ranks()
    assert not found.ok and told in found.got and "GLOO_SOCKET_IFNAME" in found.remedy
