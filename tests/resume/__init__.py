"""`python -m tests.resume`: a training that is killed again and again, beside one that is not."""
