"""Emulate low precision on float32 hardware: the graph that rounds, its probes, and the ranges that a run observes."""
