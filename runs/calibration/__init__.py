"""Code and runs that are broken on purpose, and policies whose answers can be enumerated: what detectors,
verdicts and estimators are compared with."""
