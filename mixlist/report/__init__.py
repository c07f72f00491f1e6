"""Render results: one renderer per output format."""
