"""Pure functions of arrays: tests, intervals, power and survival."""
