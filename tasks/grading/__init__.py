"""Grading of answers: final answers, mathematics, values of programs, letters."""
