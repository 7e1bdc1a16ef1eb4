"""`grpobench doctor --deep`: real checks of a machine and a recipe before the runs."""
