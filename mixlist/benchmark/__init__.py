"""Compare the speed of two models, each in a process of its own."""
