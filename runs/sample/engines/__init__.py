"""Inference engines with weights of their own, in process and behind a server."""
