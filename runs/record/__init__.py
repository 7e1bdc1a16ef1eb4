"""What a run leaves behind: its folder, where it came from, what it is pinned to."""
