"""Prove facts about values from the graph alone: ranges of constants, masks, positions, ranges of integer inputs."""
