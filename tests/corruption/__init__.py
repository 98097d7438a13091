"""Changed artifacts: what a rank does with thousands of them, and that none of them runs."""
