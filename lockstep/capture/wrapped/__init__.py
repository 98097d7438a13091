"""Models that torch wraps: what a wrapper does in hooks and in C++ becomes part of the graph."""
