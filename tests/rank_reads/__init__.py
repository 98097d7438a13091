"""Ways to look at the rank, the device, the environment or the data in a step; see `__main__`."""
