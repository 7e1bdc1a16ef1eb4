"""Shared parts of tasks of one kind: problems with answers, generated problems, programs."""
