"""Errors whose message is one sentence for the user: exit code 2, no traceback."""

from __future__ import annotations

import re

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")  # of terminals, and of direction


def shown(text: str) -> str:
    """Text as it may go to a terminal: control characters, which could rewrite what stands there, are replaced."""
    return _CONTROL.sub("\ufffd", text)


def sentence(text: str, most: int = 700) -> str:
    """One line of bounded length; the middle gives way, because the remedy stands at the end."""
    line = shown(" ".join(text.split()))
    return line if len(line) <= most else f"{line[: most // 2]} … {line[-most // 3 :]}"


class LabError(Exception):
    """The laboratory cannot go on, and says why."""


class Stopped(Exception):
    """Ctrl-C: the message says what is stored and which command goes on."""
