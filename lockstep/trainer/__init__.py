"""The graph trainer: a model trained by compiled steps, from a config to checkpoints."""
