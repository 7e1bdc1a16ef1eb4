"""Evaluating a model, a run's weights or an experiment outside of training."""
