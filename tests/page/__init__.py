"""The pages of the product, opened and used in a real browser: `python -m tests.page`."""
