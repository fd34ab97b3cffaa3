"""The survey: whether a loss helps on public tables."""
