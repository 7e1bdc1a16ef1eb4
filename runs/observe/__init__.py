"""Callbacks: what else is told of a run while it goes on, each in a process of its own."""
