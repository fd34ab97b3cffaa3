"""Training: Algorithms 2 and 3 of the paper, the released loop, every baseline."""
