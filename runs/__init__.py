"""Runs: recipes, models, sampling, training, evaluation, and the command line."""
