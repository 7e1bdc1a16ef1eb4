"""Helpers that know nothing of experiments: text, garbage collection and helper processes."""
