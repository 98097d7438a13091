"""Numbers: all ranks replayed in one process, true gradients, and the one-rank twin."""
