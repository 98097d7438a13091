"""Other people's programs under Lockstep: of each, what was established, or where it is refused."""
