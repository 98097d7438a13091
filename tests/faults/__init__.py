"""Wrong training programs and their right twins, checked: `python -m tests.faults [FOLDER]`."""
