"""Write files atomically, lock folders, and read JSON with the line and column of each value."""
