"""Small training programs of the kinds that people write, right ones and wrong ones of each."""
