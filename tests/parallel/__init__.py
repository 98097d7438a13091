"""Models laid out over meshes by their plans: the layouts that tests and commands go through."""
