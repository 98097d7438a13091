"""Models that torch wraps, on four ranks; see `__main__.py`."""
