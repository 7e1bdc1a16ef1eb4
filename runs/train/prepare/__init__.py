"""What runs before the first step: warm starts and studies of the problems."""
