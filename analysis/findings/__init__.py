"""Claims of the literature, each with a rule that was fixed before the runs and that judges it."""
