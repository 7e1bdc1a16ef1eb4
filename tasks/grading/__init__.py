"""Whether an answer is right: final answers, mathematics, values of programs, letters."""
