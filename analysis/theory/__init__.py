"""Predictions of what estimators of the policy gradient do, and how measurements of them compare."""
