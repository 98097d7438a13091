"""The flagship scene: a forgotten conversion of a norm's weight, its finding and its repair."""
