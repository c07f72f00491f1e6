"""Estimate the operations of a model and the bytes it moves, from tensor shapes alone, for any machine."""
