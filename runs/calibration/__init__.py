"""Broken runs on purpose: the labeled library that detectors and verdicts are held against."""
