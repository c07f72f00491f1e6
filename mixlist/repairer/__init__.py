"""Repair a model that was authored in low precision: find the fewest nodes to raise to float32."""
