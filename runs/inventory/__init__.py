"""What the suite knows and what this machine has: lists, pages, checks."""
