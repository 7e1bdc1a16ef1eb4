"""Sandboxes for code that a model wrote."""
