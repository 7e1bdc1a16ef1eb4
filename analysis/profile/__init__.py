"""Profiles: scores of every algorithm on probes, and what can be told from them."""
