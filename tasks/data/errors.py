"""What is raised for data that is missing or malformed."""

from __future__ import annotations


class DataError(Exception):
    """Bad or missing data; the message names the file, the line and the remedy."""
