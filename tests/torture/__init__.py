"""Crash, fault and fuzz runs of any size: `make torture`, and small samples of the same code in the
tests."""
