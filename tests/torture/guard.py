"""What every fuzzed call is held to: no hang, no exception but the promised ones, one sentence
each."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager

from tests.torture.summary import demand

SECONDS = (
    20.0  # of processor time for one case; the slowest honest one takes a fraction of a second
)
LONGEST = 1500  # characters of a message


class Hang(BaseException):
    """Nothing may catch it."""


@contextmanager
def no_hang() -> Iterator[None]:
    """Raise Hang after SECONDS of processor time (its timer is not the one that pytest-timeout
    uses)."""

    def stop(*_: object) -> None:
        raise Hang(f"no end after {SECONDS:g} s of processor time")

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def one_sentence(error: BaseException | str) -> None:
    """A message for people: one line, not empty, not endless."""
    text = str(error)
    demand(bool(text.strip()), f"an empty message: {error!r}")
    demand(len(text.splitlines()) == 1, f"more than one line: {text[:300]!r}")
    demand(len(text) <= LONGEST, f"a message of {len(text):,} characters: {text[:200]!r}")
