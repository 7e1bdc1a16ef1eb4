"""Many runs: the launcher, its workers, and what is shown of them."""
