"""What belongs on stdout: messages of the protocol while a server serves there, a command's data.

What an author's code prints goes to stderr. While a framework serves over stdio, it lets
descriptor 1 mean stderr itself; what was printed before, or is never flushed, waits in a buffer and
would reach the wire when the process ends.
"""

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager, redirect_stdout, suppress


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


@contextmanager
def data_to_stdout() -> Generator[None]:
    """Keep stdout for what is written to `sys.stdout` in the block.

    Whatever else writes to descriptor 1 (child processes, C code, `sys.__stdout__`), and after the
    block everything, exit handlers included, goes to stderr, for good. Where whoever reads has seen
    enough and is gone, the process ends quietly, with 1. A stdout that is not the process's own
    (captured, replaced, closed) is let be.
    """
    if not _is_own():
        yield
        return
    stdout = sys.stdout
    stdout.flush()
    elsewhere = _stderr()  # first, so that the data does not get the number of a closed stderr
    data = os.fdopen(os.dup(1), "w", encoding=stdout.encoding, errors=stdout.errors)
    os.dup2(elsewhere, 1)
    os.close(elsewhere)
    with data, redirect_stdout(data):
        try:
            try:
                yield
            finally:
                data.flush()
        except BrokenPipeError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), data.fileno())  # for what still waits
            raise SystemExit(1) from None


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
