"""Checks of `find` and `inventory`: what is ours is seen, and nothing else is taken for ours."""

import asyncio
from collections.abc import Mapping

from nimble_lifecycle.errors import Gone
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.calls import Ended
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.vendor import External, InProgress
from nimble_lifecycle.testing.conformance.bench import (
    Bench,
    Finding,
    NotChecked,
    Warned,
    at_once,
    random_word,
    said,
)
from nimble_lifecycle.testing.conformance.creating import neighbour
from nimble_lifecycle.testing.conformance.lives import create


async def find(bench: Bench) -> None:
    """Look up what was created."""
    _must_find(bench)
    row = bench.subject()

    async def look() -> Ended:
        found = await bench.asked("find", row)
        return None if isinstance(found, Gone) else found

    found: Ended = await bench.within_lag(look)
    match found:
        case External():
            _must_be(row, found)
        case InProgress():
            raise NotChecked("find says that it is still being made: see usable")
        case None:
            raise Finding(
                f"find did not see a resource within lag ({bench.lag:g} s) after its creation:"
                " look for idempotency_key, or declare a longer lag"
            )
        case _:
            raise Finding(f"find {said(found)} for a resource that is there")


def _must_be(row: Tenancy, found: External) -> None:
    if found.external_id != row.external_id:
        raise Finding(
            f"find gives {found.external_id} for what provision called {row.external_id}:"
            " one resource has one id"
        )
    wrong = _wrong_mark(row, found)
    if wrong:
        raise Finding(
            f"find shows {wrong} for a resource that is ours, and the worker will take it for"
            " another's: give the whole idempotency_key as key, or None"
        )


async def find_details(bench: Bench) -> None:
    """See that a create that was looked up has the same details as one that was answered."""
    _must_find(bench)
    row = bench.subject()
    found = await bench.asked("find", row)
    if not isinstance(found, External):
        raise NotChecked("find does not see the resource: see find")
    missing = sorted(set(row.details) - set(found.details))
    if missing:
        raise Finding(
            f"find lacks details that provision gives ({', '.join(missing)}): after a crash the"
            " tools of the server would do without; give External the same details"
        )


async def find_nothing(bench: Bench) -> None:
    """Look up what never was."""
    _must_find(bench)
    outcome = await bench.asked("find", bench.row(key=f"{random_word(10)}-{random_word(26)}"))
    if isinstance(outcome, External):
        raise Finding(
            f"find gave {outcome.external_id} for a key that was never used: it must compare the"
            " whole idempotency_key"
        )
    if outcome is not None and not isinstance(outcome, Gone):
        raise Finding(f"find {said(outcome)} for a key that was never used: it must return None")


async def find_whole_key(bench: Bench) -> None:
    """Look up keys that resemble the one that was used, and its workspace under other keys."""
    _must_find(bench)
    row = bench.subject()
    for what, key in _resembling(str(row.idempotency_key)).items():
        asked = bench.row(key=key, workspace=row.workspace_id)
        found = await bench.asked("find", asked)
        if isinstance(found, External):
            raise Finding(
                f"find gave {found.external_id} for {what}: what does not carry the whole"
                " idempotency_key is not this tenancy's"
            )


def _resembling(key: str) -> Mapping[str, str]:
    owner, _, rest = key.partition("-")
    return {
        "another key of the same deployment and workspace": f"{owner}-{random_word(26)}",
        "another deployment's key for the same workspace": f"{random_word(10)}-{rest}",
        "a key that differs in its last character": neighbour(key),
        "the beginning of its key": key[:-1],
        "a longer key": f"{key}a",
    }


async def inventory(bench: Bench) -> None:
    """List, with several resources there."""
    _must_list(bench)

    async def make() -> None:
        await create(bench, bench.row())

    await at_once([make] * (bench.crowd - 1))

    async def look() -> bool | None:
        return None if _missing(bench, await _listed(bench)) else True

    if await bench.within_lag(look) is None:
        missing = _missing(bench, await _listed(bench))
        raise Finding(
            f"inventory misses {len(missing)} of ours, {missing[0]} for one: list every page, and"
            " raise where that cannot be done"
        )


def _missing(bench: Bench, shown: list[External]) -> list[str]:
    made = {name for life in bench.lives.values() for name in life.made}
    return sorted(made - bench.released - {each.external_id for each in shown})


async def _listed(bench: Bench) -> list[External]:
    try:
        shown = await bench.inventory()
    except (Finding, asyncio.CancelledError):
        raise
    except Exception as error:  # an adapter may raise anything
        raise Finding(f"inventory raised {described(error)}") from error
    for each in shown:
        if not isinstance(each, External):
            raise Finding(f"inventory yields {type(each).__name__}: yield External")
        if each.created_at is not None and each.created_at.tzinfo is None:
            raise Finding("inventory yields a created_at without a time zone: make it aware (UTC)")
    return shown


async def inventory_marks(bench: Bench) -> None:
    """See whose the inventory says things are: ours, another deployment's, nobody's."""
    _must_list(bench)
    theirs = bench.row(key=f"{random_word(10)}-{random_word(26)}")
    await create(bench, theirs)
    shown = {each.external_id: each for each in await _listed(bench)}
    for life in list(bench.lives.values()):
        for name in life.made & set(shown):
            wrong = _wrong_mark(life.tenancy, shown[name])
            if wrong:
                raise Finding(
                    f"inventory shows {wrong} for {name}, which was made under"
                    f" {life.tenancy.idempotency_key}: show the mark the resource itself carries"
                )
    ours = [each for each in shown.values() if bench.is_ours(each)]
    taken = bench.foreign & {each.external_id for each in ours}
    if taken:
        raise Finding(f"inventory shows {min(taken)} as ours, which has no mark of ours")
    if shown and not any(each.key or each.owner for each in shown.values()):
        raise Warned(
            "inventory shows neither key nor owner: orphans cannot be told from what is others'"
        )


async def inventory_released(bench: Bench) -> None:
    """List what is there, and not what was released."""
    _must_list(bench)
    if not (bench.sees or bench.looks_up):
        raise NotChecked("there is no find and no Sandbox.resources to see it by")
    if not bench.released:
        raise NotChecked("nothing was released")

    async def shown() -> list[str]:
        return sorted(bench.released & {each.external_id for each in await _listed(bench)})

    async def look() -> bool | None:
        return None if await shown() else True

    if not await bench.within_lag(look):
        witness = "Sandbox.resources" if bench.sees else "find"
        raise Finding(
            f"inventory shows {(await shown())[0]}, which was released and is gone by {witness}:"
            " leave out what is removed, or a sweep takes it for an orphan"
        )


def _wrong_mark(row: Tenancy, shown: External) -> str | None:
    """Say which mark of a resource is not the one of its row."""
    key = str(row.idempotency_key)
    if shown.key not in (None, key):
        return f"the key {shown.key!r}"
    if shown.owner not in (None, key.partition("-")[0]):
        return f"the owner {shown.owner!r}"
    return None


def _must_find(bench: Bench) -> None:
    if not bench.can_find:
        raise NotChecked("the class has no find")


def _must_list(bench: Bench) -> None:
    if not bench.vendor.implements("inventory"):
        raise NotChecked("the class has no inventory")
