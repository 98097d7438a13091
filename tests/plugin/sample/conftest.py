"""Writes down which of Lockstep's modules a session has imported."""

import sys
from pathlib import Path


def pytest_sessionfinish(session):
    names = sorted(name for name in sys.modules if name.partition(".")[0] == "lockstep")
    Path(session.config.rootpath, "imported").write_text("\n".join(names))
