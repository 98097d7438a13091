"""Types by rules: abstract interpretation of every rank's graph, one mesh axis at a time."""
