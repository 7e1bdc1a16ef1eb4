"""Metrics of rollouts, ratios and evaluations."""
