"""`lockstep show` and `verify` need the standard library alone, and execute nothing."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lockstep.build.artifact import pack
from lockstep.build.bundle import pack_bundle
from lockstep.build.program import Program
from lockstep.cli import main
from lockstep.cli.plain import outcome
from tests.sources import ROOT

PROGRAM = Program("graph", "raise SystemExit('it ran')\ndef call(inputs): ...\n", {}, {})
PROBE = """
import sys
from lockstep.cli import main
from lockstep.cli.plain import outcome
code = main(sys.argv[1:])
own = {name.partition(".")[0] for name in sys.modules} - set(sys.stdlib_module_names)
print(code, sorted(own - {"__main__", "lockstep"}))
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """An artifact and a bundle."""
    one, many = tmp_path / "step.lockstep", tmp_path / "bundle.lockstep"
    data = pack({"step": "train"}, PROGRAM).to_bytes()
    one.write_bytes(data)
    many.write_bytes(pack_bundle({"0a.lockstep": data}))
    return one, many


def alone(*words: str) -> subprocess.CompletedProcess[str]:
    """Run in a process that has no packages: `-S` leaves out the folder that holds them."""
    return subprocess.run(
        [sys.executable, "-S", *words], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_a_verb_runs_where_there_is_no_package(verb, files):
    for file in files:
        done = alone("-c", PROBE, verb, str(file))
        assert done.stderr == ""
        assert done.stdout.startswith(f"{file.name}: verified, ")
        assert done.stdout.splitlines()[-1] == "0 []"


def test_there_really_is_no_package():
    """The twin: another verb needs some, and does not find them."""
    done = alone("-m", "lockstep", "check", "x.py")
    assert "No module named 'tyro'" in done.stderr


def test_a_damaged_file_is_refused_where_there_is_no_package(files):
    files[0].write_bytes(files[0].read_bytes()[:-1])
    done = alone("-m", "lockstep", "verify", str(files[0]))
    assert done.returncode == 1
    assert done.stderr.startswith("LS210: cut short\n")


def test_what_verify_tells(files, capsys):
    assert main(["verify", str(files[0])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:12] for line in lines] == [
        "step.lockste", "  sha256    ", "  signed    ", "  byte code ",
    ]  # fmt: skip
    assert lines[2:] == ["  signed    by nobody", "  byte code what the text compiles to"]
    assert main(["verify", str(files[1])]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert ", bundle of 1 artifacts, " in lines[0]
    assert lines[3].startswith("  holds     0a.lockstep, ") and lines[3].endswith("step train")


def test_what_a_file_holds_steers_no_terminal(tmp_path, capsys):
    path = tmp_path / "step.lockstep"
    path.write_bytes(pack({"step": "a\x1b[2J\ud800b", "x": "\u202e"}, PROGRAM).to_bytes())
    assert main(["show", str(path)]) == 0
    out = capsys.readouterr().out
    assert "step      a\\x1b[2J\\ud800b" in out and "\\u202e" in out
    assert "\x1b" not in out


def test_help_and_a_wrong_word_are_argparse_s(capsys):
    with pytest.raises(SystemExit) as left:
        main(["verify", "--help"])
    assert left.value.code == 0
    assert "Verify every byte of an artifact" in capsys.readouterr().out
    with pytest.raises(SystemExit) as left:
        main(["verify"])
    assert left.value.code == 2
    assert "the following arguments are required: FILE" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["show", "verify"])
def test_output_that_nobody_reads_ends_in_silence(verb, files):
    command = [sys.executable, "-m", "lockstep", verb, str(files[0])]
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=ROOT, timeout=120)
    finally:
        os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_a_verb_leaves_signals_alone_and_tells_of_another_broken_pipe(capsys):
    """A process that calls a verb may serve others: a reader that goes must not end it."""

    def serves() -> int:
        near, far = socket.socketpair()
        far.close()
        with near:
            near.sendall(b"to nobody")
        return 0

    before = signal.getsignal(signal.SIGPIPE)
    with pytest.raises(BrokenPipeError):
        outcome(serves)
    assert signal.getsignal(signal.SIGPIPE) is before is signal.SIG_IGN
