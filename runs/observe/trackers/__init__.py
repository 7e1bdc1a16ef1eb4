"""Callbacks that write to experiment trackers."""
