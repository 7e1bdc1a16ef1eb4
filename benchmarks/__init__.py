"""Benchmarks of speed and memory against TRL and against the machine's limits."""
