"""The loop of a run: collect, credit, update, log, evaluate, save."""
