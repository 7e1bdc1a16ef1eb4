"""Speed and memory, against TRL and against what the machine could do."""
