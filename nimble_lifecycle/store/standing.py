"""What people are told of a row: what it waits for, and the one command that settles it.

The stored status says how the last step ended. What holds a row back besides (a pause, a refused
credential, an open breaker) is never written to rows: it is found out here, whenever they are
listed. Values of rows may be forged, so commands name rows by their id alone.
"""

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import cast
from uuid import UUID

import sqlalchemy as sa

from nimble_lifecycle.protocol import FLEET, Phase, Why
from nimble_lifecycle.store.models import tenancy as t
from nimble_lifecycle.store.models import vendor
from nimble_lifecycle.store.ports import Clock, instant_of
from nimble_lifecycle.store.prepared import Row
from nimble_lifecycle.store.sightings import Sort
from nimble_lifecycle.store.views import external_name_of, release_asked, shown_reason

_fleet = vendor.alias("fleet")
_CONDITIONS = (
    "kind",
    "paused",
    "paused_until",
    "pause_reason",
    "halted_at",
    "capped_at",
    "breaker_opened_at",
)
PROGRAM = "nimble-reconcile"


@dataclass(frozen=True, slots=True)
class Standing:
    """What is shown of a row besides its columns; `settle` is a command line for a person."""

    reason: str | None
    message: str | None
    settle: str | None = None


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that holds for a whole kind and needs a person.

    `settle` is None where no command of ours can do it.
    """

    kind: str
    message: str
    settle: str | None


def conditioned(clock: Clock) -> "sa.Select[*tuple[object, ...]]":
    """Select rows with what holds for their vendor and for the fleet, and the present instant."""
    return sa.select(
        *t.c,
        *(vendor.c[name].label(f"vendor_{name}") for name in _CONDITIONS),
        _fleet.c.paused.label("fleet_paused"),
        instant_of(clock).label("now"),
    ).select_from(
        t.outerjoin(vendor, vendor.c.kind == t.c.kind).outerjoin(_fleet, _fleet.c.kind == FLEET)
    )


def standing_of(row: Row) -> Standing:
    """Give what is shown: the first that applies of what holds the row back."""
    tellers = (
        *(_over, _stalled, _refused, _paused, _in_grace),
        *(_halted, _asked_to_wait, _capped, _held, _unattended),
    )
    for tell in tellers:
        found = tell(row)
        if found is not None:
            return found
    return _stored(row)


# -- what can be said of a row, in this order ------------------------------------------------------


def _over(row: Row) -> Standing | None:
    ended = row["phase"] in (Phase.RELEASED, Phase.KEPT) or row["retired_at"] is not None
    return _stored(row) if ended else None


def _stalled(row: Row) -> Standing | None:
    """Say that nothing but a person or changed params will go on with it."""
    if row["phase"] != Phase.STALLED or row["due_at"] is not None:
        return None
    unknown = row["reason"] == Why.CREATE_OUTCOME_UNKNOWN and row["external_id"] is None
    unsure = unknown or (row["reason"] == Why.QUARANTINED and row["external_id"] is None)
    if release_asked(row) and not unsure:
        return None  # it is released all the same
    reason = cast("str | None", row["reason"])
    if unknown:
        return Standing(reason, _window(row), _about(row, "retry", "--assume-not-created"))
    return Standing(reason, _message(row), _about(row, "retry"))


def _refused(row: Row) -> Standing | None:
    """Say that it is ready as before, and its changed params were refused."""
    at_rest = row["due_at"] is None and row["lease_owner"] is None
    refused = row["phase"] == Phase.READY and row["reason"] is not None and at_rest
    if not refused or release_asked(row):
        return None
    return Standing(str(row["reason"]), _message(row), _about(row, "retry"))


def _paused(row: Row) -> Standing | None:
    if row["paused"]:
        blocked = _next(row) or "its updates and its release"
        message = f"paused by an operator, which blocks {blocked}"
        return Standing(Why.PAUSED, message, _about(row, "resume"))
    blocks = _next(row)
    if blocks is None:
        return None
    if row["vendor_paused"]:
        message = f"its kind is paused by an operator, which blocks {blocks}"
        return Standing(Why.PAUSED, message, _command("resume", "--kind", str(row["kind"])))
    if row["fleet_paused"]:
        message = f"the fleet is paused by an operator, which blocks {blocks}"
        return Standing(Why.PAUSED, message, _command("resume", "--fleet"))
    return None


def _in_grace(row: Row) -> Standing | None:
    """Say that a release waits for its grace: nothing else holds it back before that is over."""
    after = _instant(row, "release_after")
    if not release_asked(row) or after is None or after <= _now(row):
        return None
    if shown_reason(row) != Why.STILL_IN_USE:
        return _stored(row)
    message = f"in use since its release was asked for, which therefore waits until {_at(after)}"
    return Standing(Why.STILL_IN_USE, message)


def _halted(row: Row) -> Standing | None:
    since, blocks = _instant(row, "vendor_halted_at"), _next(row)
    if since is None or blocks is None:
        return None
    message = f"the vendor refuses the credential since {_at(since)}, which blocks {blocks}"
    return Standing(Why.CREDENTIAL_REFUSED, message)


def _asked_to_wait(row: Row) -> Standing | None:
    until, blocks = _instant(row, "vendor_paused_until"), _next(row)
    if until is None or until <= _now(row) or blocks is None:
        return None
    message = f"the vendor is left alone until {_at(until)}, which blocks {blocks}"
    return Standing(str(row["vendor_pause_reason"]), message)


def _capped(row: Row) -> Standing | None:
    """Say that its first create waits for a cap."""
    since, due = _instant(row, "vendor_capped_at"), _instant(row, "due_at")
    begun = row["create_started_at"] is not None or (due is not None and due > _now(row))
    if since is None or begun or _next(row) != "its create":
        return None
    message = (
        f"new tenancies wait for --max-live or --max-creates-per-hour since {_at(since)}: start"
        " the worker with more, or wait until others are released or the hour is over"
    )
    return Standing(Why.CAP_REACHED, message)


def _held(row: Row) -> Standing | None:
    """Say that a release whose grace is over is behind an open breaker."""
    opened, after = _instant(row, "vendor_breaker_opened_at"), _instant(row, "release_after")
    if opened is None or after is None or not release_asked(row):
        return None
    message = f"too many releases at once: none is begun since {_at(opened)}"
    return Standing(Why.RELEASE_BREAKER_OPEN, message, _approve(str(row["kind"])))


def _unattended(row: Row) -> Standing | None:
    """Say that it waits for a worker that was never started."""
    if row["vendor_kind"] is not None or _next(row) is None:
        return None
    message = (
        f"no worker for {row['kind']} has used this database yet, which blocks {_next(row)}:"
        " `nimble-reconcile run TARGET`, with an adapter of that kind"
    )
    return Standing(shown_reason(row), message)


def _stored(row: Row) -> Standing:
    return Standing(shown_reason(row), _message(row))


def _next(row: Row) -> str | None:
    """Name what a worker would ask of the vendor next; None: nothing."""
    is_open = row["external_id"] is None or row["operation_id"] is not None
    if row["release_started_at"] is not None:
        return "its release"
    if row["phase"] in (Phase.PROVISIONING, Phase.UNRESOLVED) and is_open:
        call = "create" if row["created_at"] is None else "update"
        return f"finding out how its {call} ended"
    if release_asked(row):
        return "its release"
    if row["phase"] == Phase.PENDING:
        return "its create"
    changed = row["attempted_params_hash"] != row["params_hash"]
    if row["phase"] == Phase.READY and (changed or row["due_at"] is not None):
        return "its update"
    return None


def _window(row: Row) -> str:
    """Say when a create may have been applied, what to look for, and what the last call met."""
    first, last = _instant(row, "create_started_at"), _instant(row, "create_attempted_at")
    if first is None or last is None:
        return _message(row) or ""
    ends = _instant(row, "create_ends_at") or last
    why = f"; its last error: {row['last_error']}" if row["last_error"] else ""
    return (
        f"a create begun at {_at(first)} or later may have been applied, until {_at(ends)}:"
        f" look at the vendor for {external_name_of(row)}{why}"
    )


# -- what holds for a whole kind -------------------------------------------------------------------


def notices_of(row: Row) -> Iterator[Notice]:
    """Give what of a row of `nimble_vendor` needs a person."""
    kind = str(row["kind"])
    who = "the fleet" if kind == FLEET else kind
    if row["paused"]:
        scope = ("--fleet",) if kind == FLEET else ("--kind", kind)
        yield Notice(kind, f"{who} is paused by an operator", _command("resume", *scope))
    halted = _instant(row, "halted_at")
    if halted is not None:
        message = (
            f"the vendor refuses the credential of {who} since {_at(halted)}: give the worker a"
            " valid one, and it goes on by itself"
        )
        yield Notice(kind, message, None)
    for name, what in (("breaker", "releases"), ("sweep_breaker", "the sweep's actions")):
        opened = _instant(row, f"{name}_opened_at")
        if opened is not None:
            message = f"the breaker over {what} of {who} is open since {_at(opened)}"
            yield Notice(kind, message, _approve(kind))
    for sort, (what, option) in _LEFT.items():
        count = (cast("dict[str, int] | None", row["left_to_person"]) or {}).get(sort)
        if count:
            message = f"{kind}: {what}: {count}, as the last sweep saw it; {_LISTED}"
            yield Notice(kind, message, _command("sweep", "TARGET", *option))


_LEFT = {
    Sort.ORPHAN: ("resources of ours that no row has", ("--release-orphans",)),
    Sort.MATCH: ("resources that an unknown create may have made", ("--dry-run",)),
    Sort.UNLISTED: ("workspaces that the host does not list", ("--release-unlisted",)),
}
"""What a sweep leaves to a person, and with what options the next one settles or lists it."""

_LISTED = f"`{PROGRAM} sweep TARGET --dry-run` lists them"


# -- words -----------------------------------------------------------------------------------------


def _about(row: Row, verb: str, *options: str) -> str:
    return _command(verb, str(cast("UUID", row["id"])), *options)


def _approve(kind: str) -> str:
    return _command("approve", "--kind", kind)


def _command(*words: str) -> str:
    return shlex.join([PROGRAM, *words])


def _message(row: Row) -> str | None:
    return cast("str | None", row["message"])


def _instant(row: Row, name: str) -> datetime | None:
    return cast("datetime | None", row[name])


def _now(row: Row) -> datetime:
    return cast("datetime", row["now"])


def _at(instant: datetime) -> str:
    return instant.isoformat(timespec="seconds")
