"""Rewards of rollouts: graders, learned models, reward functions, verifier checks."""
