"""Handing an experiment over to another library, which runs it on its own cluster."""
