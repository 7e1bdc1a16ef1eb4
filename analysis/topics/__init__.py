"""One file per subject of the report: its numbers, then its tables, then its figures."""
