"""What knows nothing of runs: files, locks, seeds, processes, strict settings."""
