"""Evaluating a model, a run's weights or a matrix outside of training."""
