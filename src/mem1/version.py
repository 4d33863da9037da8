"""The version of this package, in one place: pyproject.toml reads it too."""

__version__ = "0.3.0"
