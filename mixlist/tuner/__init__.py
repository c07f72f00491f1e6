"""Search for the smallest list under which a model is safe and fast."""
