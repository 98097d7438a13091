"""Repeated parts of a captured graph, found by structure alone: each is a body, lowered once."""
