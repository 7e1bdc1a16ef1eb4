"""How often detectors and verdicts are wrong, on runs of which it is known what they are."""
