"""Account for operations and bytes from shapes, for any machine."""
