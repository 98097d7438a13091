"""Faults of every kind at every point of a job's start, on real ranks under two agents."""
