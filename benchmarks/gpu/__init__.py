"""`make gpu`: everything that needs a GPU to be proved, part by part, in less than 25 minutes."""
