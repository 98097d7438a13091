"""What goes wrong under plain torch, and what becomes of it: `python -m tests.scenes`."""
