"""The search for the smallest list under which a model keeps its limits."""
