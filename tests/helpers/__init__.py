"""What several test files share: toys, stand-ins, attacks, synthetic experiments."""
