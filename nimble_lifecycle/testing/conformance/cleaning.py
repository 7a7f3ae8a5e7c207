"""Removes what a run made, and says what could not be removed.

What was there before the run is never touched, whatever the adapter calls it.
"""

from collections.abc import Mapping
from dataclasses import replace

from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.redact import described
from nimble_lifecycle.reconciler.vendor import External, InProgress
from nimble_lifecycle.testing.conformance.bench import SHORTEST_WAIT, Bench, Life
from nimble_lifecycle.testing.conformance.lives import finished, release
from nimble_lifecycle.testing.report import Leftover


async def clean(bench: Bench) -> list[Leftover]:
    """Release everything the run made and give what is left of it."""
    await bench.late_calls()
    left: dict[str, Leftover] = {}
    stuck: list[Leftover] = []
    for life in list(bench.lives.values()):
        stuck += await _looked_up(bench, life)
    made = _made(bench)
    for name, row in made.items():
        if name not in bench.released and (words := await _release(bench, row)):
            left[name] = Leftover(name, row.idempotency_key, words)
    for name in bench.foreign:
        if words := await _remove(bench, name):
            left[name] = Leftover(name, None, words)
    return stuck + await _after_another_look(bench, made, left)


async def tidy(bench: Bench) -> None:
    """Release what is done with, so that no more is there at once than must be.

    Only once releases are known to work: until then one might take something else with it.
    """
    if not bench.passed >= {"release", "release-by-id"}:
        return
    for name, row in _made(bench).items():
        if name not in bench.released and (bench.ready is None or name != bench.ready.external_id):
            await _release(bench, row)


async def _looked_up(bench: Bench, life: Life) -> list[Leftover]:
    """Learn what became of the creates of a row that nobody knows the end of."""
    row = life.tenancy
    if life.stuck:
        words = f"its operation {life.operation} was still in progress"
        return [Leftover(None, row.idempotency_key, words)]
    settled = life.seen and life.operation is None
    if settled or not bench.looks_up:
        return []
    try:
        found = await bench.asked("find", row)
        if isinstance(found, (InProgress, External)):
            await finished(bench, row, found)
    except Exception as error:  # noqa: BLE001  # an adapter may raise anything
        words = f"it could not be looked up: {described(error)}"
        return [Leftover(None, row.idempotency_key, words)]
    return []


def _made(bench: Bench) -> Mapping[str, Tenancy]:
    """Give the rows of everything that calls gave, by id."""
    rows = {
        name: replace(life.tenancy, external_id=name)
        for life in bench.lives.values()
        for name in life.seen
    }
    return {
        name: row for name, row in rows.items() if name not in bench.before.keys() | bench.foreign
    }


async def _after_another_look(
    bench: Bench, made: Mapping[str, Tenancy], left: Mapping[str, Leftover]
) -> list[Leftover]:
    """Release what the vendor still shows, and believe it about the rest."""
    shown = await _shown(bench, made)
    if shown is None:
        return list(left.values())
    nobodys = replace(bench.row(), idempotency_key=None, external_name=None)
    for each in shown:
        if each.external_id not in left:
            await _release(bench, replace(nobodys, external_id=each.external_id))
        await _remove(bench, each.external_id)
    still = await _shown(bench, made) or []
    words = "it is still there after its release"
    return [
        left.get(each.external_id, Leftover(each.external_id, each.key, words)) for each in still
    ]


async def _shown(bench: Bench, made: Mapping[str, Tenancy]) -> list[External] | None:
    """List what is there of what the run made, once the vendor had time to forget it."""
    end = bench.clock.monotonic() + bench.lag
    while True:
        try:
            listing = await bench.listing()
        except Exception:  # noqa: BLE001  # an adapter may raise anything
            return None
        if listing is None:
            return None
        ours = made.keys() | bench.foreign
        found = [each for each in listing if each.external_id in ours or bench.is_ours(each)]
        if not found or bench.clock.monotonic() >= end:
            return found
        await bench.clock.sleep(max(SHORTEST_WAIT, bench.lag / 20))


async def _release(bench: Bench, row: Tenancy) -> str | None:
    try:
        await release(bench, row)
    except Exception as error:  # noqa: BLE001  # an adapter may raise anything
        return str(error) or described(error)
    return None


async def _remove(bench: Bench, external_id: str) -> str | None:
    """Remove by the sandbox what the adapter cannot."""
    if not bench.sandbox.implements("remove"):
        return "the sandbox made it, and has no remove"
    try:
        await bench.sandbox.remove(external_id)
    except Exception as error:  # noqa: BLE001  # a sandbox may raise anything
        return described(error)
    return None
