"""The version of mixlist, in a module that imports nothing: every room can read it."""

__version__ = "0.1.0"
