"""Callbacks that write to trackers people already use."""
