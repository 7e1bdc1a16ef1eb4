"""Tools that know nothing of runs: files, locks, seeds, processes, strict settings."""
