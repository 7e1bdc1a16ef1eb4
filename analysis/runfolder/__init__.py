"""Read run folders strictly: files, checksums, runs and whole experiments."""
