"""Running an experiment: launcher, engines, display, status, merging."""
