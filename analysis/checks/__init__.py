"""Checks of runs that are compared: what a reader must know before the numbers."""
