"""A run as one page: of the journal's events a model, and of the model HTML, or a trace."""
