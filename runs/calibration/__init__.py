"""Broken runs on purpose: the labelled library that detectors and verdicts are held against."""
