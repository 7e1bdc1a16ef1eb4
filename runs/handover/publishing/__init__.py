"""Raw results for others: written as a file set, checked, and shown next to ours."""
