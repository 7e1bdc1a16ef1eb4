"""How often detectors and verdicts are wrong, measured on runs whose condition is known."""
