"""What somebody with the server's role can still do to a worker, and what comes of it.

`docs/security.md` has a line for each test here; `tests/store/test_stolen_role.py` has those that
need no worker.
"""

from collections.abc import Iterator

import psycopg
import pytest
from psycopg.types.json import Jsonb
from pydantic import BaseModel

from nimble_lifecycle.reconciler.limits import rules_of
from nimble_lifecycle.testing import MemoryVendor

pytestmark = [pytest.mark.anyio, pytest.mark.postgres]

INSERT = """
INSERT INTO nimble_tenancy (id, tenant_id, workspace_id, kind, incarnation, first_seen_at, desired,
                            params, params_hash, generation, generation_at, last_seen_at)
VALUES (gen_random_uuid(), %(tenant)s, %(workspace)s, %(kind)s, 1, now(), 'wanted',
        %(params)s, %(hash)s, 1, now(), now())
"""


class Thief:
    """A session of the server's role, in hands that are not the server's."""

    def __init__(self, url: str) -> None:
        self.session = psycopg.connect(url, autocommit=True)

    def invent(self, workspace: str, *, tenant: str = "", kind: str = "memory") -> None:
        values = {"tenant": tenant, "workspace": workspace, "kind": kind}
        self.session.execute(INSERT, {**values, "params": Jsonb({}), "hash": ""})

    def write_params(self, params: object) -> None:
        change = "UPDATE nimble_tenancy SET params = %s, params_hash = md5(%s), generation = 2"
        self.session.execute(change, [Jsonb(params), str(params)])


@pytest.fixture
def thief(halves) -> Iterator[Thief]:
    thief = Thief(halves.server)
    yield thief
    thief.session.close()


class Params(BaseModel):
    region: str


class Checking(MemoryVendor):
    params_model = Params


@pytest.mark.parametrize("params", [{}, {"region": ["eu"]}, [], "eu", 7, None])
async def test_params_written_by_hand_are_checked_before_the_adapter_sees_them(
    halves, thief, fleet_at, params: object
) -> None:
    fleet = fleet_at(halves.worker, Checking())
    fleet.ready("a", region="eu")
    thief.write_params(params)
    await fleet.work()
    row = fleet.row()
    assert (row["phase"], row["reason"]) == ("stalled", "InvalidParams")
    assert (fleet.world.created, fleet.world.most_at_once) == (0, 0)


@pytest.mark.parametrize(
    ("tenant", "workspace"),
    [("", " "), ("", "x" * 256), ("", "a\x1b[31m"), (" ", "a"), ("t\n", "a")],
)
async def test_an_identity_no_host_has_never_reaches_the_adapter(
    halves, thief, fleet_at, tenant: str, workspace: str
) -> None:
    fleet = fleet_at(halves.worker)
    thief.invent(workspace, tenant=tenant)
    thief.invent("healthy")
    await fleet.work()
    rows = {row["workspace_id"]: (row["phase"], row["reason"]) for row in fleet.rows()}
    assert rows == {workspace: ("stalled", "InvalidIdentity"), "healthy": ("ready", None)}
    assert [made.workspace_id for made in fleet.world.resources.values()] == ["healthy"]


async def test_an_identity_no_host_has_is_not_looked_up_either(halves, thief, fleet_at) -> None:
    fleet = fleet_at(halves.worker)
    thief.invent("a\x1b[31m")
    stopped = fleet.store.claim(rules_of(fleet.vendor, fleet.limits, "a worker that dies"), 1)
    assert len(stopped) == 1
    with psycopg.connect(halves.owner, autocommit=True) as owner:
        owner.execute("UPDATE nimble_tenancy SET lease_expires_at = now(), due_at = now()")
    thief.session.execute("UPDATE nimble_tenancy SET desired = 'release', generation = 2")
    await fleet.work()
    assert fleet.world.most_at_once == 0
    assert {(entry["action"], entry["outcome"]) for entry in fleet.journal()} == {
        ("find", "never sent")
    }


async def test_rows_of_other_kinds_are_left_alone(halves, thief, fleet_at) -> None:
    fleet = fleet_at(halves.worker)
    thief.invent("a", kind="other")
    await fleet.work()
    assert fleet.row()["lease_token"] == 0
    assert fleet.world.created == 0


async def test_an_invented_workspace_gets_a_tenancy_which_ends_as_it_came(
    halves, thief, fleet_at
) -> None:
    fleet = fleet_at(halves.worker)
    thief.invent("nobody")
    await fleet.work()
    assert len(fleet.world.resources) == 1
    fleet.removing("nobody")
    await fleet.work()
    assert fleet.world.resources == {}
