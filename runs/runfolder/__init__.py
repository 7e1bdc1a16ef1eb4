"""The folder of one run: provenance, fingerprints, logs, checkpoints, results."""
