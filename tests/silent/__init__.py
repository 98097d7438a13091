"""Right programs of many parallelisms: a check finds nothing, and its types know nearly all."""
