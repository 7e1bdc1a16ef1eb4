"""Callbacks: processes beside a run that receive its metrics."""
