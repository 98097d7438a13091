"""Passes over a captured graph that keep every bit of its results; each is proved where it runs."""
