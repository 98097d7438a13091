"""An artifact as one page: its graph by module and phase, searched and folded in the browser."""
