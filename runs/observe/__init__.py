"""Callbacks: processes that receive the metrics of a run."""
