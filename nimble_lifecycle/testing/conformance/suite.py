"""The order of the checks, and the run."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from typing import Final, TypeAlias

from nimble_lifecycle.errors import ConfigurationError, VendorError
from nimble_lifecycle.protocol import Json
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.steps import invalid_params
from nimble_lifecycle.reconciler.vendor import External, Vendor
from nimble_lifecycle.store import Threads
from nimble_lifecycle.testing.conformance import (
    crashing,
    creating,
    looking,
    observed,
    releasing,
    troubles,
)
from nimble_lifecycle.testing.conformance.bench import Bench, Finding, NotChecked, Warned
from nimble_lifecycle.testing.conformance.cleaning import clean, tidy
from nimble_lifecycle.testing.report import Checked, Report, Verdict
from nimble_lifecycle.testing.sandbox import Sandbox

Check: TypeAlias = Callable[[Bench], Awaitable[None]]

Adapter: TypeAlias = Vendor | Callable[[], Vendor]
"""An adapter, or what makes one: its class."""

Progress: TypeAlias = Callable[[Sequence[Checked], str], None]
"""Called before each check with what is known so far and the name of the check."""

FIRST: Final[Mapping[str, Check]] = {
    "declarations": creating.declarations,
    "provision": creating.provision,
    "operation": creating.operation,
}
"""Without these there is nothing to look at."""

REST: Final[Mapping[str, Check]] = {
    "made": creating.made,
    "details": creating.details,
    "find": looking.find,
    "usable": creating.usable,
    "find-details": looking.find_details,
    "find-absent": looking.find_nothing,
    "find-whole-key": looking.find_whole_key,
    "name-taken": releasing.name_taken,
    "inventory": looking.inventory,
    "inventory-marks": looking.inventory_marks,
    "release": releasing.released,
    "release-again": releasing.released_again,
    "release-by-id": releasing.surplus,
    "inventory-released": looking.inventory_released,
    "repeat": creating.repeated,
    "repeat-at-once": creating.repeated_at_once,
    "other-keys": creating.other_keys,
    "update": creating.update,
    "update-of-gone": releasing.update_of_gone,
    "next-worker": crashing.next_worker,
    "interrupted-create": crashing.interrupted_create,
    "interrupted-release": crashing.interrupted_release,
    "forgotten-operation": creating.forgotten_operation,
    "credential": troubles.credential,
    "rate-limit": troubles.rate_limit,
    "unreachable": troubles.unreachable,
    "no-answer": troubles.no_answer,
    "certain-errors": creating.certain_errors,
    "lost-answer": troubles.lost_answer,
    "one-each": observed.one_each,
    "untouched": observed.untouched,
}

LAST: Final[Mapping[str, Check]] = {
    "ids": observed.ids,
    "time-limit": observed.time_limit,
    "event-loop": observed.event_loop,
    "cancellation": observed.cancellation,
}
"""About what all the others saw."""

_LOOKED_UP: Final = frozenset({"find", "find-absent", "find-whole-key"})

RESTS_ON: Final[Mapping[str, frozenset[str]]] = {
    "find-details": frozenset({"find"}),
    "find-whole-key": frozenset({"find-absent"}),
    "usable": frozenset({"made"}),
    "inventory-marks": frozenset({"inventory"}),
    "repeat-at-once": frozenset({"repeat"}),
    "release-by-id": frozenset({"release"}),
    "inventory-released": frozenset({"inventory", "release", "release-by-id"}) | _LOOKED_UP,
    "update": frozenset({"repeat"}),
    "update-of-gone": frozenset({"update", "release"}),
    "interrupted-create": _LOOKED_UP | {"repeat"},
    "interrupted-release": frozenset({"release", "release-again", "release-by-id"}),
    "certain-errors": _LOOKED_UP,
    "lost-answer": _LOOKED_UP
    | {"repeat", "release", "release-again", "interrupted-create", "interrupted-release"}
    | {"certain-errors"},
}
"""What a check takes for granted: where that failed, it would only say the same once more."""

log = logging.getLogger("nimble_lifecycle")


async def check_vendor(
    vendor: Adapter,
    *,
    sandbox: Sandbox | None = None,
    params: Mapping[str, Json] | None = None,
    changed_params: Mapping[str, Json] | None = None,
    timeout: float = 300.0,  # noqa: ASYNC109  # of each step, not of the whole
    crowd: int = 3,
    progress: Progress | None = None,
) -> Report:
    """Run an adapter through repeated calls, crash points and faults, against its own vendor.

    Give it an account or a double that may be filled and emptied: it makes some dozens of resources
    and removes them again, whatever happens. `vendor` is the adapter's class, or whatever makes an
    adapter, so that the next worker has an object of its own; or an adapter that was not entered
    yet, which then goes on by itself. `sandbox` is the other view of the vendor, without which some
    checks are not made. `params` must fit `params_model`; `changed_params` is what a ready tenancy
    is changed to, by default the same. `timeout` is in seconds, for one resource to be made or
    removed. `crowd` resources are there at once when the inventory is looked at: make it more than
    a page.

    Raises ConfigurationError for params that do not fit, or where the adapter itself does, and
    VendorError where it cannot be opened.
    """
    threads = Threads(20, "nimble-check")
    given = dict(params or {})
    make = None if isinstance(vendor, Vendor) else vendor
    first = vendor if isinstance(vendor, Vendor) else vendor()
    bench = Bench(
        vendor=first,
        make=make,
        sandbox=sandbox or Sandbox(),
        threads=threads,
        params=given,
        changed_params=given if changed_params is None else dict(changed_params),
        timeout=timeout,
        crowd=crowd,
    )
    _must_fit(bench)
    try:
        async with _entered(bench.sandbox, "sandbox"), _entered(first, "adapter"):
            return await _run(bench, progress or (lambda _done, _name: None))
    finally:
        threads.close()


def _must_fit(bench: Bench) -> None:
    for params in (bench.params, bench.changed_params):
        refused = invalid_params(bench.vendor, replace(bench.row(), params=params))
        if refused is not None:
            raise ConfigurationError(f"{refused}: give params that fit params_model (--params)")


@asynccontextmanager
async def _entered(thing: object, what: str) -> AsyncIterator[None]:
    """Enter what is an async context manager; a failure to leave it is no finding."""
    if not isinstance(thing, AbstractAsyncContextManager):
        yield
        return
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(thing)
        except ConfigurationError:  # the author's own words
            raise
        except Exception as error:
            raise VendorError(f"the {what} could not open: {described(error)}") from error
        yield


async def _run(bench: Bench, progress: Progress) -> Report:
    done: list[Checked] = []
    bench.before = await _there(bench)
    try:
        for name, check in {**FIRST, **REST, **LAST}.items():
            progress(done, name)
            done.append(await _checked(bench, name, check))
            await tidy(bench)
    except BaseException:
        for each in await clean(bench):
            log.warning("left behind: %s", each)
        raise
    progress(done, "cleaning up")
    return Report(bench.vendor.kind, done, await clean(bench))


async def _there(bench: Bench) -> dict[str, External]:
    """Give what is there before the run, as far as anybody tells."""
    if bench.sandbox.implements("resources"):
        return {each.external_id: each for each in await bench.sandbox.resources()}
    with suppress(Exception):  # the adapter's listing is looked at later
        return {each.external_id: each for each in await bench.inventory()}
    return {}


async def _checked(bench: Bench, name: str, check: Check) -> Checked:
    if name in REST and bench.ready is None:
        return Checked(name, Verdict.NOT_CHECKED, "nothing could be created")
    failed = sorted(RESTS_ON.get(name, frozenset()) & bench.failed)
    if failed:
        return Checked(name, Verdict.NOT_CHECKED, f"it rests on {failed[0]}")
    try:
        await check(bench)
    except Finding as finding:
        bench.failed.add(name)
        with suppress(Exception):  # what it left lying about is the same mistake
            await bench.strays()
        return Checked(name, Verdict.FAILED, str(finding))
    except NotChecked as reason:
        return Checked(name, Verdict.NOT_CHECKED, str(reason))
    except Warned as warning:
        return Checked(name, Verdict.WARNING, str(warning))
    except Exception as error:  # noqa: BLE001  # a sandbox may raise anything
        return Checked(name, Verdict.FAILED, f"the check broke off: {described(error)}")
    bench.passed.add(name)
    return Checked(name, Verdict.OK)
