"""The statements a store sends, noted where every one passes: at the driver."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import sqlalchemy as sa

from nimble_lifecycle.store.database import Database


@dataclass(frozen=True)
class Sent:
    """A statement; on SQLite its values are part of the text."""

    text: str
    values: object = None


@contextmanager
def statements_sent(store: Database) -> Iterator[list[Sent]]:
    """Note what this thread sends meanwhile, not what others send, as the notifier's does."""
    sent: list[Sent] = []
    caller = threading.get_ident()

    def note(text: object, values: object = None) -> None:
        if threading.get_ident() == caller:
            sent.append(Sent(str(text), values))

    with ExitStack() as stack:
        stack.enter_context(_traced(store, note) if store.is_sqlite else _wrapped(note))
        yield sent


@contextmanager
def _traced(store: Database, note) -> Iterator[None]:
    def start(connection, *_) -> None:
        connection.set_trace_callback(note)

    def end(connection, *_) -> None:
        if connection is not None:
            connection.set_trace_callback(None)

    sa.event.listen(store.engine, "checkout", start)
    sa.event.listen(store.engine, "checkin", end)
    try:
        yield
    finally:
        sa.event.remove(store.engine, "checkout", start)
        sa.event.remove(store.engine, "checkin", end)


@contextmanager
def _wrapped(note) -> Iterator[None]:
    from nimble_lifecycle.store.postgresql import NumberedCursor

    send = NumberedCursor.execute

    def noting(self, query, params=None, **options):
        note(query, params)
        return send(self, query, params, **options)

    with mock.patch.object(NumberedCursor, "execute", noting):
        yield
