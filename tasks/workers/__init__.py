"""Processes that can be killed, for what may hang."""
