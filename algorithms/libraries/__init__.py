"""Presets of other libraries, and the arguments that make those libraries do what our algorithms do."""
