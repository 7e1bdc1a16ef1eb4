"""From prompts to rollouts: samplers, decoding, episodes of one turn or many."""
