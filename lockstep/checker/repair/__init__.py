"""Repairs: candidates as lines to paste, tried out on edited code, and written as a patch."""
