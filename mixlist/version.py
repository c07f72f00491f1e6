"""The version of mixlist, in a module that imports nothing: every folder can import it."""

# The build finds this line with a regular expression (pyproject.toml), so it stays a plain assignment.
__version__ = "0.1.0"
