"""Lists and pages of what grpobench has, and checks of machine, data and recipes."""
