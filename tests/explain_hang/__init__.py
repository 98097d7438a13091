"""Real jobs of four ranks that hang, and what is told of them: `python -m tests.explain_hang`."""
