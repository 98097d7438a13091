"""Ways of steps that a capture could lose in silence; see `__main__`."""
