"""Where problems come from: tables, packages, files, and what is wrong with them."""
