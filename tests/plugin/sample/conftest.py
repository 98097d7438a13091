"""Writes down which of Lockstep's modules a session of the sample project has imported."""

import sys
from pathlib import Path


def pytest_sessionfinish(session):
    here = Path(__file__).parent
    if session.config.rootpath != here:  # the sample itself, met by the suite around it
        return
    names = sorted(name for name in sys.modules if name.partition(".")[0] == "lockstep")
    (here / "imported").write_text("\n".join(names))
