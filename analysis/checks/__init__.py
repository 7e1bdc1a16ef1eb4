"""Check whether the runs of an experiment can be compared, and list what a reader must know first."""
