"""Ways to log on one rank from inside a step; see `__main__`."""
