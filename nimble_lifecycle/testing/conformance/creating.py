"""Checks of `provision` and `poll`: what a create brings, and that it brings it once."""

import asyncio
import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import isfinite
from typing import Final

from nimble_lifecycle.errors import CredentialError, Gone, NameConflict, Unavailable
from nimble_lifecycle.protocol import Json, Tenancy
from nimble_lifecycle.reconciler.calls import Ended
from nimble_lifecycle.reconciler.limits import LEASES_PER_LIMIT
from nimble_lifecycle.reconciler.redact import redacted
from nimble_lifecycle.reconciler.settled import storable
from nimble_lifecycle.reconciler.vendor import InProgress, Provisioned
from nimble_lifecycle.testing.conformance.bench import (
    Bench,
    Finding,
    NotChecked,
    Warned,
    lookalike,
    random_word,
    readied,
    said,
)
from nimble_lifecycle.testing.conformance.lives import (
    create,
    finished,
    polled,
    provisioned,
    recovered,
)

_STANDS_FOR: Final = ("ref", "id", "name", "path", "url", "uri", "arn", "fingerprint", "version")
"""Ends of names whose values stand for a secret and are none."""


async def declarations(bench: Bench) -> None:
    """See that what the class declares fits together."""
    vendor = bench.vendor
    lease = vendor.time_limit * LEASES_PER_LIMIT
    if vendor.repeatable is not None and vendor.repeatable <= lease:
        raise Finding(
            f"repeatable is {vendor.repeatable}, no longer than one lease ({lease}), and so never"
            " counted on: declare how long the vendor remembers a key, or None"
        )
    if not bench.repeats and not bench.can_find:
        raise Warned(
            "the class has neither repeatable nor find: after a time-out or a crash its creates"
            " wait for a person (stalled: CreateOutcomeUnknown)"
        )


async def provision(bench: Bench) -> None:
    """Begin the first create."""
    tenancy = bench.row()
    outcome = await bench.asked("provision", tenancy)
    match outcome:
        case Provisioned():
            bench.ready = readied(tenancy, outcome)
        case InProgress():
            bench.begun = (tenancy, outcome)
        case _:
            raise Finding(f"provision {said(outcome)}: {_advice(outcome)}")


def _advice(outcome: Ended) -> str:
    """Say what to look at where a first create was answered with anything else."""
    if isinstance(outcome, Unavailable):
        return "the vendor cannot be reached; check its address, and that it is up"
    if isinstance(outcome, CredentialError):
        return "the vendor refuses the credential; check the one this process has"
    return "for a workspace that is new it must return Provisioned or InProgress"


def _first_operation(bench: Bench) -> tuple[Tenancy, InProgress]:
    """Give the first create where it took its time; NotChecked where it did not."""
    if bench.begun is not None:
        return bench.begun
    none = bench.ready is None
    raise NotChecked("nothing could be created" if none else "the first create was over at once")


async def operation(bench: Bench) -> None:
    """Bring the first create to its end, where it took its time."""
    tenancy, begun = _first_operation(bench)
    for name, value in (("poll_after", begun.poll_after), ("deadline", begun.deadline)):
        if value is not None and not _is_seconds(value):
            raise Finding(f"InProgress.{name} must be a number of seconds, zero or more")
    outcome = await polled(bench, tenancy, begun)
    if not isinstance(outcome, Provisioned):
        raise Finding(f"the operation of a create must end with Provisioned: poll {said(outcome)}")
    bench.ready = readied(tenancy, outcome)


async def forgotten_operation(bench: Bench) -> None:
    """Poll an operation that the vendor does not know."""
    tenancy, begun = _first_operation(bench)
    unknown = lookalike(begun.operation_id)
    if unknown is None:
        raise NotChecked("operation ids are so short that one made up might be another's")
    row = replace(bench.row(), workspace_id=tenancy.workspace_id, operation_id=unknown)
    outcome = await bench.asked("poll", row)
    if not isinstance(outcome, Gone):
        raise Finding(
            f"for an operation the vendor does not know poll {said(outcome)}: it must raise Gone,"
            " so that the worker finds out what became of it"
        )


async def made(bench: Bench) -> None:
    """See that the vendor itself shows what was created."""
    if not bench.sandbox.implements("resources"):
        raise NotChecked("it takes a Sandbox with resources")
    row = bench.subject()

    async def look() -> bool | None:
        return await bench.exists(row) or None

    if not await bench.within_lag(look):
        raise Finding(
            f"provision gave {row.external_id}, which the vendor (Sandbox.resources) does not show:"
            " give the vendor's own id of what was made"
        )


async def details(bench: Bench) -> None:
    """See that the details can be kept, and read by anybody who may call a tool."""
    shown = bench.subject().details
    kept, wrong = storable(shown)
    if kept is None:
        raise Finding(f"{wrong}: return a JSON object of at most 8 KB")
    secret = next(_secrets(kept), None)
    if secret is not None:
        raise Finding(
            f"details[{secret!r}] looks like a secret, and every tool of the server can read it:"
            " put the secret into a secret store and its reference into details"
        )


async def usable(bench: Bench) -> None:
    """See that what was called ready is."""
    if not await is_usable(bench, bench.subject()):
        raise Finding(
            "provision or poll returned Provisioned before the resource can be used: return"
            " InProgress until it can"
        )
    if not bench.sandbox.implements("usable") and not bench.can_find:
        raise NotChecked("there is no find and no Sandbox.usable to tell")


async def is_usable(bench: Bench, row: Tenancy) -> bool:
    """Whether a ready row can be used, as far as the sandbox or else the adapter's find says."""
    if bench.sandbox.implements("usable"):
        return await bench.sandbox.usable(Provisioned(str(row.external_id), row.details))
    return not bench.looks_up or not isinstance(await bench.asked("find", row), InProgress)


async def repeated(bench: Bench) -> None:
    """Create under one key, forget it, and create under the same key once more."""
    _must_repeat(bench)
    row = bench.row()
    made = await create(bench, row)
    again = await create(bench, row)
    if again.external_id != made.external_id:
        raise Finding(
            f"the same key gave {made.external_id} and then {again.external_id}: send"
            " idempotency_key to the vendor, look for it first, or declare repeatable = None"
        )
    await no_strays(bench, "repeating a key")


async def repeated_at_once(bench: Bench) -> None:
    """Create under one key twice at the same time, as after a lease that was lost."""
    _must_repeat(bench)
    row = bench.row()
    both = await asyncio.gather(create(bench, row), create(bench, row), return_exceptions=True)
    for each in both:
        if isinstance(each, BaseException) and not isinstance(each, Finding):
            raise each
    after = await finished(bench, row, await recovered(bench, row))
    made = {each.external_id for each in (*both, after) if isinstance(each, Tenancy)}
    if len(made) > 1:
        raise Finding(
            f"the same key twice at once gave {len(made)} resources ({_listed(made)}): let the"
            " vendor decide by the key; to look first and then create is too late"
        )
    await no_strays(bench, "the same key twice at once")


async def other_keys(bench: Bench) -> None:
    """Create for the same workspace under other keys: its next life, another deployment's."""
    row = bench.row()
    first = await create(bench, row)
    made = {str(first.external_id)}
    for key in (neighbour(str(row.idempotency_key)), f"{random_word(10)}-{random_word(26)}"):
        other = bench.row(key=key, workspace=row.workspace_id)
        outcome = await provisioned(bench, other)
        if isinstance(outcome, NameConflict):
            continue  # the names collide, and the second waits until the first is gone
        second = await finished(bench, other, outcome)
        if second.external_id in made:
            raise Finding(
                f"two keys gave one resource, {second.external_id}: the key is the whole mark;"
                " what carries another one is another's, and its name is NameConflict"
            )
        made.add(str(second.external_id))


async def update(bench: Bench) -> None:
    """Change the params of a ready tenancy."""
    made = await create(bench, bench.row())
    before = await _details(bench, made)
    changed = await finished(
        bench, made, await bench.asked("provision", replace(made, params=bench.changed_params))
    )
    if changed.external_id != made.external_id:
        raise Finding(
            f"changed params made {changed.external_id} of {made.external_id}: with external_id"
            " set, provision must change that resource and return its id"
        )
    await no_strays(bench, "changed params")
    if before is not None and bench.changed_params != bench.params:
        await _must_change(bench, made, before)


async def _must_change(bench: Bench, row: Tenancy, before: Mapping[str, Json]) -> None:
    """Raise Warned where the vendor shows a resource as it was before its params changed."""

    async def look() -> bool | None:
        return await _details(bench, row) != before or None

    if not await bench.within_lag(look):
        raise Warned(
            f"with changed params the vendor (Sandbox.resources) shows {row.external_id} as before:"
            " provision must change it; if it does, let resources show in details what it changes"
        )


async def _details(bench: Bench, row: Tenancy) -> Mapping[str, Json] | None:
    """Give what the vendor itself shows of a resource; None: nothing."""
    shown = await bench.sandbox.resources() if bench.sees else []
    found = (each.details for each in shown if each.external_id == row.external_id)
    return next(found, None)


async def certain_errors(bench: Bench) -> None:
    """See that no error said that nothing was made where something was."""
    for how in bench.observed.denied:
        raise Finding(
            f"provision {how}, which says that certainly nothing was made, and something carried"
            " the key: raise UnknownOutcome for whatever was sent and not plainly refused"
        )


async def no_strays(bench: Bench, what: str) -> None:
    """Raise Finding where something is at the vendor that no row knows of."""
    found = await bench.strays()
    if found:
        ids = _listed({each.external_id for each in found})
        raise Finding(f"{what} left behind what no row knows of: {ids}")


def neighbour(key: str) -> str:
    """Give the key that differs in the last character only."""
    return key[:-1] + ("a" if key[-1] != "a" else "b")


def _must_repeat(bench: Bench) -> None:
    if not bench.repeats:
        raise NotChecked("the class does not say that a key may be repeated (repeatable)")


def _is_seconds(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return isfinite(value) and value >= 0


def _listed(names: set[str | None]) -> str:
    return ", ".join(sorted(map(str, names)))


def _secrets(value: Json, name: str = "") -> Iterator[str]:
    """Give the places in details where something looks like a secret."""
    if isinstance(value, dict):
        for inner, item in value.items():
            yield from _secrets(item, f"{name}.{inner}" if name else inner)
    elif isinstance(value, list):
        for item in value:
            yield from _secrets(item, name)
    elif isinstance(value, str) and value:
        text = value if name.lower().endswith(_STANDS_FOR) else f"{name}={json.dumps(value)}"
        if redacted(text) != text or redacted(value) != value:
            yield name
