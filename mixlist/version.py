"""The version of mixlist: every room may read it without importing the package's face."""

__version__ = "0.1.0"
