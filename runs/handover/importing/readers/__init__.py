"""Readers, one per format: each returns a file or folder as a `Log` with the original metric names."""
