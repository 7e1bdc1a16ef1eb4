"""Claims of the literature with the rule by which each is judged, fixed before the runs."""
