"""Importing logs of other libraries as run folders."""
