"""What some packages need to run without an accelerator; printed in full beside the table."""
