"""Export a PyTorch module as a training-step graph. Only `step_names` works without the extra `torch`."""
