"""A case for every rule: operators alone, on operands of drawn shapes and types."""
