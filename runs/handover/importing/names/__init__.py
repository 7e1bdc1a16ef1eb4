"""Tables from other libraries' metric names to ours."""
