"""Logs of other libraries as run folders."""
