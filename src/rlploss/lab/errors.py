"""Errors whose message is one sentence for the user: exit code 2, no traceback."""

from __future__ import annotations


class LabError(Exception):
    """The laboratory cannot go on, and says why."""


class Stopped(Exception):
    """Ctrl-C: the message says what is stored and which command goes on."""
