"""What tasks of a kind share: answers, generated problems, programs."""
