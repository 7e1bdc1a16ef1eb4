"""What is to run: recipes, their layers and rules, and the configuration of a run."""
