"""Write files whole or not at all; read JSON with the position of each value."""
