"""Prove facts from the graph: ranges of constants, masks, positions, quantized units, ranges of integer inputs."""
