"""Hold what targets can run: kernel tables and provider names, as data."""
