"""Sources of problems: tables, packages, files, and checks of them."""
