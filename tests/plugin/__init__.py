"""The pytest plug-in, shown on a sample project: `python -m tests.plugin`."""
