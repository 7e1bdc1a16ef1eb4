"""`grpobench eval` and `grpobench export`: evaluating models, runs and experiments outside of training."""
