"""Findings: what is registered, kept and rerun of each."""
