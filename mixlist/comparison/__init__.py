"""Compare the effect of two policies on one model: nodes, Casts, and with data accuracy and cost."""
