"""Lockstep: a training step is captured once, compiled on one rank, and run on every rank."""

__version__ = "0.1.0"
