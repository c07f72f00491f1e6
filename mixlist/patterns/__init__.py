"""Prove properties of values from the graph alone: ranges of constants, masks, positions, ranges of integer inputs."""
