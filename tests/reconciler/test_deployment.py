"""A worker on a real copy of a database: the original's resources are none of its business."""

import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import sqlalchemy as sa
from waiting import PATIENCE

from nimble_lifecycle.errors import ForeignDatabase
from nimble_lifecycle.store.deployment import Deployment
from nimble_lifecycle.store.models import deployment
from nimble_lifecycle.testing import MemoryVendor

pytestmark = pytest.mark.anyio


@pytest.fixture
def copy(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[str], str]]:
    """Give a function that copies a database nobody is connected to and gives the copy's URL."""
    with ExitStack() as stack:

        def copied(url: str) -> str:
            if url.startswith("sqlite"):
                shutil.copyfile(url.removeprefix("sqlite:///"), tmp_path / "copy.db")
                return f"sqlite:///{tmp_path / 'copy.db'}"
            databases = request.getfixturevalue("postgres")
            return stack.enter_context(databases.fresh(urlsplit(url).path.removeprefix("/")))

        yield copied


async def test_a_copy_makes_its_own_and_touches_nothing_of_the_originals(
    fleet, copy, database_url: str
) -> None:
    vendor = MemoryVendor()
    original = fleet(vendor)
    Deployment(original.store, None).enter()
    original.ready("a", "b", "leaving", n=1)
    await original.work()
    original.removing("leaving")
    theirs = dict(vendor.world.resources)
    assert len(theirs) == 3
    original.close()

    there = type(original)(copy(database_url), vendor)
    Deployment(there.store, None).claim_copy(actor="me")
    Deployment(there.store, None).enter()
    await there.work()
    assert {k: r for k, r in vendor.world.resources.items() if k in theirs} == theirs
    ours = [made for key, made in vendor.world.resources.items() if key not in theirs]
    assert {made.workspace_id for made in ours} == {"a", "b"}
    assert not {made.key for made in ours} & {made.key for made in theirs.values()}

    there.removing("a", "b", "leaving")
    await there.work()
    assert vendor.world.resources == theirs
    there.close()


async def test_a_worker_ends_when_the_database_under_it_is_another_ones(fleet) -> None:
    here, host = fleet(), fleet()
    Deployment(here.store, None).enter()
    here.ready("a")
    await here.work()
    other = sa.update(deployment).values(fingerprint="somewhere else")
    host.store.writing(soon(host), lambda at: at.execute(other).close())
    here.store.engine.dispose()  # what a failover does to connections
    host.ready("b")
    with pytest.raises(ForeignDatabase):
        await here.with_worker(lambda worker: worker.run())
    assert {row["workspace_id"]: row["phase"] for row in host.rows()} == {
        "a": "ready",
        "b": "pending",
    }


async def test_an_idle_worker_ends_when_its_database_is_given_to_another(fleet) -> None:
    vendor = MemoryVendor()
    here, host = fleet(vendor), fleet(vendor)
    Deployment(here.store, "production").enter()
    here.ready("a")
    await here.work()
    made = dict(vendor.world.resources)
    Deployment(host.store, "staging").claim_copy(actor="me")
    with pytest.raises(ForeignDatabase):
        await here.with_worker(lambda worker: worker.run())
    assert vendor.world.resources == made
    assert [row["phase"] for row in host.rows()] == ["ready", "pending"]


def soon(fleet) -> float:
    return fleet.store.clock.monotonic() + PATIENCE
