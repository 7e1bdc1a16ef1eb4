"""Comparisons of speed and memory."""
