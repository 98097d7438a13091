"""`python -m tests.bitwise --ranks 2 4`: which numbers are equal to the last bit, on real ranks.

`graph` against eager; `inductor` against every rank that compiles the captured graph for itself.
"""
