"""Time two models against each other, each in a process of its own."""
