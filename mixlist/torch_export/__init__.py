"""Export a PyTorch module as a training-step graph. This room needs the extra `torch`."""
