"""Training through TRL's own trainers."""
