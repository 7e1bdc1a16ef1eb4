"""Raw results for others: written as a file set, checked, and put beside ours."""
