"""Find events of instability in one run; training uses the same code while a run goes on."""
