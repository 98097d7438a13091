"""Whether a changed program is ever served an old artifact; `python -m tests.staleness`."""
