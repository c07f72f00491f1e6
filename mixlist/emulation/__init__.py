"""Emulate low precision on float32 hardware: the graph that rounds, probes inside it, what a run observed."""
