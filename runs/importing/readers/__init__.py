"""Readers, one per format: a file or folder as a `Log`, under the names that its writer gave."""
