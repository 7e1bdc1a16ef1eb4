"""Small tables of finished experiments that stay in the repository, and their Markdown."""
