"""Worker processes with time limits, for code that may hang."""
