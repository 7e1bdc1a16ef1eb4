"""The Python interface: run, load, compare, import, list."""
