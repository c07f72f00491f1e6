"""Represent a model: its scopes, nodes and tensors, their types and shapes, and how it is loaded and saved."""
