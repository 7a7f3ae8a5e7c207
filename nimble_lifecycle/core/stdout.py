"""What a server prints: where stdout is the wire, only messages of the protocol belong there.

While a framework serves over stdio, it lets descriptor 1 mean stderr itself. What was printed
before, or is never flushed, waits in a buffer and would reach the wire when the process ends.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress


def flush_stdout() -> None:
    """Let what was printed go where descriptor 1 leads now; a stdout that is gone is let be."""
    if sys.stdout is not None:
        with suppress(OSError, ValueError):
            sys.stdout.flush()


@contextmanager
def printed_to_stderr() -> Generator[None]:
    """Send to stderr what is printed in the block, and what was before and still waits.

    Threads and child processes included. A stdout that is not the process's own (captured,
    replaced, closed) is let be.
    """
    if not _is_own():
        yield
        return
    elsewhere = _stderr()  # first, so that the wire does not get the number of a closed stderr
    wire = os.dup(1)
    try:
        os.dup2(elsewhere, 1)
        yield
    finally:
        flush_stdout()
        os.dup2(wire, 1)
        os.close(wire)
        os.close(elsewhere)


def _is_own() -> bool:
    try:
        return sys.stdout.fileno() == 1 and bool(os.fstat(1))
    except (AttributeError, OSError, ValueError):
        return False


def _stderr() -> int:
    """Give a second descriptor of stderr, or of nothing where it is closed."""
    try:
        return os.dup(2)
    except OSError:
        return os.open(os.devnull, os.O_WRONLY)
