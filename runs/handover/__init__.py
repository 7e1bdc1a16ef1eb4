"""What goes to other libraries and to other people, and comes back: recipes, logs and results."""
