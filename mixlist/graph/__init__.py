"""Represent a model: its graph, nodes and values, the scopes they are in, loading and saving."""
