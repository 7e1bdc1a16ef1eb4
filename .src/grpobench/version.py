"""The version, written here and nowhere else; `pyproject.toml` reads it from this file."""

__version__ = "0.3.0"
