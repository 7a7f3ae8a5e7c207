"""Checks of `release`: what was named goes, whatever else is there stays."""

from dataclasses import replace

from nimble_lifecycle.errors import NameConflict
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned
from nimble_lifecycle.testing.conformance.bench import Bench, Finding, NotChecked, lookalike, said
from nimble_lifecycle.testing.conformance.lives import create, finished, release


async def surplus(bench: Bench) -> None:
    """Release a resource by its id alone, of a workspace that has another one."""
    _must_release(bench)
    row = await create(bench, bench.row())
    other = await create(bench, bench.row())
    alone = replace(
        bench.row(workspace=row.workspace_id),
        external_id=other.external_id,
        idempotency_key=None,
        external_name=None,
        params={},
    )
    try:
        await release(bench, alone)
    except Finding as finding:
        raise Finding(
            f"{finding}; a surplus is released by its external_id alone: idempotency_key and"
            " external_name are None, params and details empty"
        ) from finding
    stays, is_gone = await bench.exists(row), await bench.is_gone(other)
    if stays is False:
        raise Finding(
            f"the release of {other.external_id} removed {row.external_id}: release acts on"
            " external_id and on nothing else"
        )
    _must_be_gone(is_gone, other)


async def released(bench: Bench) -> None:
    """Release what was created, and see that it and nothing else is gone."""
    _must_release(bench)
    row = await create(bench, bench.row())
    neighbour = bench.subject()
    await release(bench, row)
    is_gone, stays = await bench.is_gone(row), await bench.exists(neighbour)
    _must_be_gone(is_gone, row)
    if stays is False:
        raise Finding(f"the release of {row.external_id} removed {neighbour.external_id} too")


async def released_again(bench: Bench) -> None:
    """Release what is gone, was deleted by hand, or never was."""
    _must_release(bench)
    row = await create(bench, bench.row())
    await release(bench, row)
    await _is_success(bench, row, "a second release of the same")
    if bench.sandbox.implements("remove"):
        row = await create(bench, bench.row())
        await bench.sandbox.remove(str(row.external_id))
        await _is_success(bench, row, "the release of what was deleted by hand")
    unknown = lookalike(str(row.external_id))
    if unknown is not None:
        await _is_success(bench, replace(row, external_id=unknown), "the release of an unknown id")


async def _is_success(bench: Bench, row: Tenancy, what: str) -> None:
    try:
        await release(bench, row)
    except Finding as finding:
        raise Finding(f"{what} is a success, but: {finding}") from finding


async def update_of_gone(bench: Bench) -> None:
    """Change the params of what is gone."""
    _must_release(bench)
    row = await create(bench, bench.row())
    await release(bench, row)
    changed = replace(row, params=bench.changed_params)
    outcome = await bench.asked("provision", changed)
    if not isinstance(outcome, (Provisioned, InProgress)):
        return
    made = await finished(bench, changed, outcome)
    bench.released.discard(str(made.external_id))
    if made.external_id != row.external_id:
        raise Finding(
            f"changed params of {row.external_id}, which is gone, made {made.external_id}: with"
            " external_id set, change that one or raise Gone"
        )
    if await bench.exists(made) is False:
        raise Finding(
            "changed params of a resource that is gone were answered with Provisioned: raise Gone"
        )


async def name_taken(bench: Bench) -> None:
    """Create where something without our mark has the name."""
    if not bench.sandbox.implements("occupy"):
        raise NotChecked("it takes a Sandbox with occupy")
    row = bench.row()
    foreign = await bench.sandbox.occupy(row)
    bench.foreign.add(foreign)
    before = await _shown(bench, foreign)
    found = await bench.asked("find", row) if bench.can_find else None
    outcome = await bench.asked("provision", row)
    adopted = [each for each in (found, outcome) if isinstance(each, (External, Provisioned))]
    if any(each.external_id == foreign for each in adopted):
        raise Finding(
            f"the adapter took {foreign} for its own, which has the name and not the mark: raise"
            " NameConflict, and let find compare the whole idempotency_key"
        )
    if isinstance(outcome, (Provisioned, InProgress)):  # some vendors let names be shared
        await finished(bench, row, outcome)
    elif not isinstance(outcome, NameConflict):
        raise Finding(f"the name was taken and provision {said(outcome)}: raise NameConflict")
    if await _shown(bench, foreign) != before:
        raise Finding(f"the adapter changed {foreign}, which is not its own")


async def _shown(bench: Bench, external_id: str) -> External | None:
    if not bench.sandbox.implements("resources"):
        return None
    listing = await bench.sandbox.resources()
    return next((each for each in listing if each.external_id == external_id), None)


def _must_be_gone(is_gone: bool | None, row: Tenancy) -> None:
    if is_gone is None:
        raise NotChecked("there is no find, inventory or Sandbox.resources to see it by")
    if not is_gone:
        raise Finding(
            f"release said that {row.external_id} is gone, and it is still there: return Released"
            " only when it is, InProgress until then"
        )


def _must_release(bench: Bench) -> None:
    if bench.vendor.on_release == "keep":
        raise NotChecked('on_release is "keep": the worker never calls release')
