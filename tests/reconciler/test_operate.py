"""The operator's verbs with real workers: what is at the vendor in the end, and the commands."""

import asyncio
import json
from collections.abc import Callable, Iterator
from getpass import getuser
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from waiting import PATIENCE

from nimble_lifecycle.errors import NameConflict, PermanentError, UnknownOutcome, VerbRefused
from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.reconciler import Vendor
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.cli import main
from nimble_lifecycle.reconciler.limits import Limits
from nimble_lifecycle.store import By, IntentStore, OperatorStore
from nimble_lifecycle.store.models import journal, tenancy, vendor
from nimble_lifecycle.testing import Fault, ManualClock, MemoryVendor, World

MakeFleet = Callable[..., Any]
Operate = Callable[[OperatorStore, UUID], None]

ME = By("ada", "ticket 7")
HANGS = Fault(hangs=True)


class Blind(MemoryVendor):
    repeatable = None
    find = Vendor.find


class Looking(MemoryVendor):
    repeatable = None


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def fleet(fleet: MakeFleet, clock: ManualClock) -> MakeFleet:
    """Make fleets on a clock that stands still: `fleet(vendor, grace=…)`."""

    def make(vendor: Vendor | None = None, grace: float = 0.0) -> Any:
        limits = Limits(poll=0.02, grace=grace, backoff=Backoff(60.0, 600.0))
        return fleet(vendor, clock=clock, limits=limits)

    return make


@pytest.fixture
def operator(database_url: str, clock: ManualClock) -> Iterator[OperatorStore]:
    store = OperatorStore(database_url, clock=clock)
    yield store
    store.close()


def work(f: Any) -> None:
    asyncio.run(f.work())


def begin(f: Any) -> None:
    """Let a worker take one step: rows that are not settled keep it from being idle."""
    known = len(f.journal())

    async def use(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        while len(f.journal()) == known:
            await asyncio.sleep(0.005)
        worker.stop()
        await running

    asyncio.run(f.with_worker(use))


def converge(f: Any, clock: ManualClock) -> None:
    """Let workers do all they can, however long they have to wait for it."""
    for _ in range(3):
        work(f)
        clock.advance(1300)
    work(f)


def change(f: Any, **columns: object) -> None:
    statement = sa.update(tenancy).values(**columns)
    f.store.writing(f.store.clock.monotonic() + PATIENCE, lambda at: at.execute(statement).close())


# -- what settles a row, and what is at the vendor then --------------------------------------------


@pytest.mark.parametrize("applied", [True, False])
def test_an_unknown_create_is_settled_by_what_the_operator_found(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock, applied: bool
) -> None:
    f = fleet(Blind())
    f.world.fail("provision", Fault(raises=UnknownOutcome("?"), applied=applied))
    f.ready("a")
    converge(f, clock)
    row = f.row()
    assert (row["phase"], row["reason"]) == ("stalled", "CreateOutcomeUnknown")
    found = f.world.of(row["idempotency_key"])
    if found:
        operator.adopt(row["id"], found[0].external_id, ME)
    else:
        operator.retry(row["id"], ME, assume_not_created=True)
    converge(f, clock)
    assert (f.phases(), f.world.created, len(f.world.resources)) == ({"ready": 1}, 1, 1)
    assert f.row()["details"], "what tools need is there, too"
    f.removing("a")
    converge(f, clock)
    assert (f.phases(), f.world.resources) == ({"released": 1}, {})


def test_an_unknown_create_that_is_to_be_released_is_settled_by_what_the_operator_found(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock
) -> None:
    f = fleet(Blind())
    unknown = UnknownOutcome("?")
    f.world.fail("provision", Fault(raises=unknown, applied=True), Fault(raises=unknown))
    f.ready("a", "b")
    work(f)
    f.removing("a", "b")
    converge(f, clock)
    assert f.phases() == {"stalled": 2}, "either may have one"
    for row in f.rows():
        found = f.world.of(row["idempotency_key"])
        if found:
            operator.adopt(row["id"], found[0].external_id, ME)
        else:
            operator.retry(row["id"], ME, assume_not_created=True)
    converge(f, clock)
    assert (f.phases(), f.world.resources, f.world.deleted) == ({"released": 2}, {}, 1)


def test_a_quarantined_create_is_looked_up_before_another_is_begun(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock
) -> None:
    f = fleet(Looking())
    f.world.fail("provision", Fault(raises=UnknownOutcome("?"), applied=True))
    f.ready("a")
    begin(f)
    change(f, phase="stalled", reason="Quarantined", reclaims=3, due_at=None)
    clock.advance(120)
    operator.retry(f.row()["id"], ME)
    converge(f, clock)
    assert (f.phases(), f.world.created) == ({"ready": 1}, 1)
    assert f.row()["reclaims"] == 0


def test_a_quarantined_create_that_nobody_can_look_up_stalls_again_and_says_why(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock
) -> None:
    f = fleet(Blind())
    f.world.fail("provision", Fault(raises=UnknownOutcome("?"), applied=True))
    f.ready("a")
    work(f)
    change(f, reason="Quarantined")
    operator.retry(f.row()["id"], ME)
    converge(f, clock)
    assert (f.row()["phase"], f.row()["reason"]) == ("stalled", "CreateOutcomeUnknown")
    assert f.world.created == 1


@pytest.mark.parametrize("how", ["removed by hand", "adopted"])
def test_a_taken_name_is_settled_at_the_vendor_or_by_adoption(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock, how: str
) -> None:
    f = fleet(Looking(World(unique_names=True)))
    taken = f.world.add("a")
    f.ready("a")
    converge(f, clock)
    row = f.row()
    assert (row["phase"], row["reason"]) == ("stalled", "NameConflict")
    if how == "adopted":
        operator.adopt(row["id"], taken.external_id, ME)
    else:
        f.world.remove(taken.external_id)
        operator.retry(row["id"], ME)
    converge(f, clock)
    assert (f.phases(), len(f.world.resources)) == ({"ready": 1}, 1)
    assert (f.row()["external_id"] == taken.external_id) is (how == "adopted")


@pytest.mark.parametrize("error", [PermanentError("no"), NameConflict("odd")])
def test_a_refused_release_is_settled_by_a_retry(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock, error: Exception
) -> None:
    f = fleet()
    f.ready("a")
    work(f)
    f.world.fail("release", Fault(raises=error))
    f.removing("a")
    converge(f, clock)
    assert (f.phases(), len(f.world.resources)) == ({"stalled": 1}, 1)
    operator.retry(f.row()["id"], ME)
    work(f)
    assert (f.phases(), f.world.resources) == ({"released": 1}, {})


def test_what_is_given_up_stays_at_the_vendor_and_a_reinstall_gets_its_own(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock
) -> None:
    f = fleet()
    f.ready("a")
    work(f)
    f.world.fail("release", Fault(raises=PermanentError("credential revoked")))
    f.removing("a")
    converge(f, clock)
    operator.abandon(f.row()["id"], ME)
    f.ready("a")
    converge(f, clock)
    assert [row["phase"] for row in f.rows()] == ["kept", "ready"]
    assert (f.world.created, f.world.deleted, len(f.world.resources)) == (2, 0, 2)
    assert len({row["external_id"] for row in f.rows()}) == 2


def test_refused_params_are_tried_again(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock
) -> None:
    f = fleet()
    f.ready("a", plan="small")
    work(f)
    f.world.fail("provision", Fault(raises=PermanentError("no such plan", reason="PlanUnknown")))
    f.ready("a", plan="big")
    converge(f, clock)
    (shown,) = operator.status()
    assert (shown["phase"], shown["reason"]) == ("ready", "PlanUnknown")
    assert shown["settle"] == f"nimble-reconcile retry {shown['id']}"
    operator.retry(f.row()["id"], ME)
    work(f)
    (resource,) = f.world.resources.values()
    assert resource.params == {"plan": "big"}
    assert operator.status()[0]["settle"] is None


def test_an_operators_release_is_lifted_by_undo_and_by_nothing_else(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock
) -> None:
    f = fleet(grace=3600.0)
    f.ready("a", "b")
    work(f)
    for row in f.rows():
        operator.release(row["id"], ME)
    work(f)
    f.ready("a", "b")
    work(f)
    assert len(f.world.resources) == 2
    operator.undo(f.rows()[0]["id"], ME)
    clock.advance(3700)
    work(f)
    assert [row["phase"] for row in f.rows()] == ["ready", "released"]
    assert [each.workspace_id for each in f.world.resources.values()] == ["a"]
    with pytest.raises(VerbRefused):
        operator.undo(f.rows()[1]["id"], ME)


@pytest.mark.parametrize("what", ["row", "kind", "fleet"])
def test_a_pause_holds_create_update_and_release_until_it_is_lifted(
    fleet: MakeFleet, operator: OperatorStore, clock: ManualClock, what: str
) -> None:
    f = fleet()
    f.ready("update", "release")
    work(f)
    f.ready("create")
    f.ready("update", plan="big")
    f.removing("release")
    for row in f.rows() if what == "row" else ():
        operator.pause_row(row["id"], ME)
    if what != "row":
        operator.pause_kind("memory" if what == "kind" else "*", ME)
    converge(f, clock)
    assert {each.workspace_id: each.params for each in f.world.resources.values()} == {
        "update": {},
        "release": {},
    }
    assert {row["reason"] for row in operator.status()} == {"Paused"}
    told = " ".join(str(row["message"]) for row in operator.status())
    assert all(f"blocks its {each}" in told for each in ("create", "update", "release"))
    for row in f.rows() if what == "row" else ():
        operator.resume_row(row["id"], ME)
    if what != "row":
        operator.resume_kind("memory" if what == "kind" else "*", ME)
    work(f)
    assert {each.workspace_id: each.params for each in f.world.resources.values()} == {
        "update": {"plan": "big"},
        "create": {},
    }


# -- a worker in the middle of a call --------------------------------------------------------------


def release(store: OperatorStore, row: UUID) -> None:
    store.release(row, ME)


def undo(store: OperatorStore, row: UUID) -> None:
    store.undo(row, ME)


def release_and_undo(store: OperatorStore, row: UUID) -> None:
    release(store, row)
    undo(store, row)


def pause_and_resume(store: OperatorStore, row: UUID) -> None:
    store.pause_row(row, ME)
    store.resume_row(row, ME)


def abandon(store: OperatorStore, row: UUID) -> None:
    store.abandon(row, ME)


def before_create(f: Any, clock: ManualClock) -> None:
    f.ready("a")
    f.world.fail("provision", HANGS)


def before_update(f: Any, clock: ManualClock) -> None:
    f.ready("a")
    work(f)
    f.ready("a", plan="big")
    f.world.fail("provision", HANGS)


def before_release(f: Any, clock: ManualClock) -> None:
    f.ready("a")
    work(f)
    f.removing("a")
    f.world.fail("release", HANGS)


def before_find(f: Any, clock: ManualClock) -> None:
    """Leave a create of unknown outcome behind whose release is asked for."""
    f.world.fail("provision", Fault(raises=UnknownOutcome("?"), applied=True))
    f.ready("a")
    begin(f)
    f.removing("a")
    clock.advance(130)
    f.world.fail("find", HANGS)


MIDDLE: list[tuple[Callable[..., None], Operate, str, int]] = [
    # what hangs, what is done meanwhile, the phase and the resources in the end
    (before_create, release, "released", 0),
    (before_create, release_and_undo, "ready", 1),
    (before_create, pause_and_resume, "ready", 1),
    (before_update, release, "released", 0),
    (before_update, release_and_undo, "ready", 1),
    (before_update, pause_and_resume, "ready", 1),
    (before_release, pause_and_resume, "released", 0),
    (before_release, abandon, "kept", 0),
    (before_find, undo, "ready", 1),
    (before_find, abandon, "kept", 1),
]
ADAPTERS = [MemoryVendor, Blind]


@pytest.mark.parametrize(
    ("adapter", "case"),
    [(a, case) for a in ADAPTERS for case in MIDDLE if (a, case[0]) != (Blind, before_find)],
    ids=lambda one: (
        one.__name__ if isinstance(one, type) else "-".join(c.__name__ for c in one[:2])
    ),
)
def test_a_verb_in_the_middle_of_a_call_doubles_nothing_and_loses_nothing(
    fleet: MakeFleet,
    operator: OperatorStore,
    clock: ManualClock,
    adapter: type[MemoryVendor],
    case: tuple[Callable[..., None], Operate, str, int],
) -> None:
    before, act, phase, resources = case
    f = fleet(adapter())
    before(f, clock)
    f.world.freeze()
    asyncio.run(interrupt(f, operator, act))
    clock.advance(31)
    converge(f, clock)
    row = f.row()
    assert (row["phase"], len(f.world.resources), f.world.created) == (phase, resources, 1)
    assert row["reclaims"] == 0
    if resources:
        (resource,) = f.world.resources.values()
        assert (resource.external_id, resource.params) == (row["external_id"], row["params"])


@pytest.mark.parametrize("adapter", ADAPTERS)
@pytest.mark.parametrize("act", [release_and_undo, pause_and_resume, release])
def test_an_operation_begun_while_a_verb_took_the_row_is_asked_about_and_not_begun_again(
    fleet: MakeFleet,
    operator: OperatorStore,
    clock: ManualClock,
    adapter: type[MemoryVendor],
    act: Operate,
) -> None:
    f = fleet(adapter(World(polls=2)))
    before_create(f, clock)
    f.world.freeze()
    asyncio.run(interrupt(f, operator, act))
    begun = f.journal()[-1]["operation_id"]
    assert f.row()["operation_id"] == begun
    clock.advance(31)
    asyncio.run(f.work_on())
    wanted = act is not release
    assert (f.row()["phase"], f.world.created) == ("ready" if wanted else "released", 1)
    assert len(f.world.resources) == wanted
    assert {entry["action"] for entry in f.journal()} & {"create", "find", "poll"} == {
        "create",
        "poll",
    }
    assert [entry["action"] for entry in f.journal()].count("create") == 1


async def interrupt(f: Any, operator: OperatorStore, act: Operate) -> None:
    """Act while a worker calls the vendor, and let it find out that the row is not its own."""

    async def use(worker: Any) -> None:
        running = asyncio.ensure_future(worker.run())
        while f.row()["lease_owner"] is None:
            await asyncio.sleep(0.005)
        act(operator, f.row()["id"])
        f.world.thaw()
        while f.journal()[-1]["actor"] == "ada":
            await asyncio.sleep(0.005)
        assert not f.journal()[-1]["settled"]
        worker.stop()
        await running

    await f.with_worker(use)


# -- the commands ----------------------------------------------------------------------------------


class Command:
    """The commands in this process, on a database with a few rows."""

    def __init__(self, url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.host = IntentStore(url)
        self.store = OperatorStore(url)
        self._capsys = capsys

    def install(self, *names: str, tenant: str = "") -> list[str]:
        until = self.host.clock.monotonic() + PATIENCE
        return [
            str(
                self.host.ready(
                    Workspace(n, tenant), "acme", Reason.INSTALL, {}, until=until
                ).tenancy.id
            )
            for n in names
        ]

    def run(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ends:
            main(arguments)
        said = self._capsys.readouterr()
        assert ends.value.code == code, said.err
        looks = arguments[0] == "status" or (arguments[0] == "journal" and not code)
        assert said.err.count("\n") <= 1, said.err
        assert said.err or looks, "a verb says what it did"
        return said.out, said.err

    def rows(self) -> list[dict[str, object]]:
        return self.store.status()

    def journal(self) -> list[sa.RowMapping]:
        select = sa.select(journal).order_by(journal.c.id)
        until = self.store.clock.monotonic() + PATIENCE
        return self.store.reading(until, lambda at: list(at.execute(select).mappings()))

    def host_now(self) -> object:
        until = self.store.clock.monotonic() + PATIENCE
        select = sa.select(self.store.clock.now())
        return self.store.reading(until, lambda at: at.execute(select).scalar_one())

    def change(self, table: sa.Table, **columns: object) -> None:
        until = self.store.clock.monotonic() + PATIENCE
        update = sa.update(table).values(**columns)
        self.store.writing(until, lambda at: at.execute(update).close())


@pytest.fixture
def command(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Command]:
    monkeypatch.setenv("NIMBLE_DATABASE_URL", sqlite_url)
    made = Command(sqlite_url, capsys)
    yield made
    made.host.close()
    made.store.close()


def test_a_verb_says_what_it_did_and_shows_the_row(command: Command) -> None:
    a, _ = command.install("ws_a", "ws_b")
    out, err = command.run("release", "ws_a", "--as", "ada", "--reason", "contract ended")
    assert err == "nimble-reconcile: ws_a #1 will be released after the grace\n"
    assert "ws_a #1" in out
    assert "release_pending" in out
    assert "ws_b" not in out
    out, _ = command.run("undo", a, "--json")
    assert json.loads(out)["phase"] == "pending"
    entries = [(e["action"], e["actor"], e["note"]) for e in command.journal()]
    assert entries == [
        ("operator: release", "ada", "contract ended"),
        ("operator: undo", getuser(), None),
    ]


def test_every_verb_is_a_command(command: Command) -> None:
    (a,) = command.install("ws")
    command.change(tenancy, phase="stalled", reason="CreateOutcomeUnknown", creates=1)
    _, refused = command.run("retry", "ws", code=1)
    assert "retry refused: whether its create was applied is unknown" in refused
    assert "`retry --assume-not-created`" in refused
    command.run("retry", "ws", "--assume-not-created")
    assert command.rows()[0]["phase"] == "pending"
    command.run("pause", "ws")
    command.run("resume", "ws")
    command.run("adopt", "ws", "res-1")
    assert command.rows()[0]["external_id"] == "res-1"
    command.run("release", "ws")
    _, refused = command.run("abandon", "ws", code=1)
    assert "say why" in refused
    command.run("abandon", "ws", "--reason", "credential revoked")
    (row,) = command.rows()
    assert (row["id"], row["phase"], row["message"]) == (a, "kept", "credential revoked")


def test_the_journal_of_a_workspace_has_all_its_lives_and_nothing_of_others(
    command: Command,
) -> None:
    first, _ = command.install("ws_a", "ws_b")
    command.run("pause", "ws_a", "--as", "ada")
    command.run("pause", "ws_b", "--as", "bob")
    command.change(tenancy, retired_at=command.host_now())
    (second,) = command.install("ws_a")
    command.run("pause", "ws_a", "--as", "eve")
    lives = json.loads(command.run("journal", "ws_a", "--json")[0])
    assert [(e["tenancy_id"], e["actor"]) for e in lives] == [(first, "ada"), (second, "eve")]
    assert {e["action"] for e in lives} == {"operator: pause"}
    every, _ = command.run("journal")
    assert [line.split()[1] for line in every.splitlines()[1:]] == ["ws_a", "ws_b", "ws_a"]
    (last,) = json.loads(command.run("journal", "--limit", "1", "--json")[0])
    assert last["actor"] == "eve"
    command.run("journal", "--limit", "0", code=2)
    command.run("journal", "nobody", code=1)
    assert json.loads(command.run("journal", "--kind", "other", "--json")[0]) == []


def test_a_summary_counts_retired_lives_apart(command: Command) -> None:
    command.install("a", "b")
    command.change(tenancy, retired_at=command.host_now())
    command.install("a")
    out, _ = command.run("status", "--json", "--summary")
    assert json.loads(out) == {"pending": 1, "retired": 2}


def test_what_needs_a_person_besides_rows_is_told_beside_json(command: Command) -> None:
    command.install("a")
    command.run("pause", "--kind", "acme")
    out, err = command.run("status", "--json", "--exit-code", code=5)
    assert [row["phase"] for row in json.loads(out)] == ["pending"]
    assert "acme is paused by an operator: nimble-reconcile resume --kind acme" in err


def test_a_kind_that_no_row_is_of_is_named_with_those_there_are(command: Command) -> None:
    command.install("a")
    words = "there are no rows of the kind 'acne'; there are rows of 'acme'"
    for verb in ("pause", "resume", "approve"):
        _, err = command.run(verb, "--kind", "acne", code=1)
        assert words in err
    _, err = command.run("status", "--kind", "acne")
    assert words in err
    _, err = command.run("status", "--kind", "acme")
    assert err == ""


def test_a_kind_and_the_fleet_are_paused_and_resumed(command: Command) -> None:
    command.install("a", "b")
    out, err = command.run("pause", "--kind", "acme")
    assert "acme is paused" in err
    assert "nimble-reconcile resume --kind acme" in out
    out, _ = command.run("pause", "--fleet", "--json")
    (fleet,) = json.loads(out)
    assert fleet["settle"] == "nimble-reconcile resume --fleet"
    command.run("resume", "--kind", "acme")
    assert {row["settle"] for row in command.rows()} == {"nimble-reconcile resume --fleet"}
    out, _ = command.run("resume", "--fleet", "--json")
    assert json.loads(out) == []
    assert {row["settle"] for row in command.rows()} == {None}


def test_an_open_breaker_is_approved(command: Command) -> None:
    command.install("a")
    _, unnamed = command.run("approve", code=2)
    assert "--kind" in unnamed
    _, odd = command.run("approve", "ws_1", "--kind", "acme", code=2)
    assert "ws_1" in odd
    _, refused = command.run("approve", "--kind", "acme", code=1)
    assert "no breaker of it is open" in refused
    command.run("pause", "--kind", "acme")
    command.run("resume", "--kind", "acme")
    command.change(vendor, breaker_opened_at=command.host_now())
    out, _ = command.run("status", "--exit-code", code=5)
    assert "nimble-reconcile approve --kind acme" in out
    command.run("approve", "--kind", "acme")
    command.run("status", "--exit-code")


@pytest.mark.parametrize(
    "arguments",
    [
        ("pause",),
        ("resume",),
        ("approve",),
        ("pause", "a", "--fleet"),
        ("pause", "--fleet", "--kind", "acme"),
        ("pause", "--kind", "acme", "--tenant", "t"),
        ("retry",),
        ("adopt", "a"),
    ],
)
def test_a_verb_without_its_object_is_wrong_use(
    command: Command, arguments: tuple[str, ...]
) -> None:
    command.install("a")
    command.run(*arguments, code=2)
    assert command.journal() == []


def test_a_name_that_fits_several_rows_is_refused_with_their_ids(command: Command) -> None:
    (a,) = command.install("ws", tenant="t1")
    (b,) = command.install("ws", tenant="t2")
    _, refused = command.run("pause", "ws", code=1)
    assert a in refused
    assert b in refused
    command.run("pause", "ws", "--tenant", "t1")
    command.run("pause", "t2/ws")
    assert len(command.journal()) == 2


def test_forged_values_reach_no_terminal_and_no_command_line(command: Command) -> None:
    names = ("[red]x[/red]", "\u202e$(reboot)", "`reboot`")
    command.install(*names)
    command.change(tenancy, phase="stalled", reason="\u202e\u001b[2J", message="\u001b[2J[b]x")
    out, _ = command.run("status")
    assert "[red]x[/red] #1" in out
    for shown in (out, command.run("pause", names[1])[0]):
        assert "\x1b" not in shown
        assert "\u202e" not in shown
    commands = [line.strip() for line in out.splitlines() if "nimble-reconcile" in line]
    assert sorted(commands) == sorted(f"nimble-reconcile retry {r['id']}" for r in command.rows())


def test_status_lists_each_command_once_with_what_it_is_for(command: Command) -> None:
    command.install("a", "b", "c")
    command.run("pause", "--kind", "acme")
    command.run("pause", "a")
    out, _ = command.run("status", "--exit-code", code=5)
    lines = [line.strip() for line in out.partition("Needs a person:")[2].splitlines() if line]
    paused = "paused by an operator"
    assert lines == [
        f"acme is {paused}",
        "nimble-reconcile resume --kind acme",
        f"a #1: {paused}, which blocks its create",
        f"nimble-reconcile resume {command.rows()[0]['id']}",
    ]
    assert json.loads(command.run("status", "--json", "--summary")[0]) == {"pending": 3}


def test_a_refused_credential_needs_a_person_though_no_command_settles_it(command: Command) -> None:
    command.install("a")
    command.run("status", "--exit-code")
    command.run("pause", "--kind", "acme")
    command.change(vendor, paused=False, halted_at=command.host_now())
    out, _ = command.run("status", "--exit-code", code=5)
    assert "CredentialRefused" in out
    assert "give the worker a valid one" in out
    assert "nimble-reconcile" not in out


def test_the_commands_that_settle_rows_are_commands(command: Command) -> None:
    """What status tells people to type is understood, whatever it is about."""
    command.install("a")
    command.change(tenancy, phase="stalled", reason="CreateOutcomeUnknown", creates=1)
    command.run(*str(command.rows()[0]["settle"]).split()[1:])
    for given in (("a",), ("--kind", "acme"), ("--fleet",)):
        command.run("pause", *given)
        command.run(*str(command.rows()[0]["settle"]).split()[1:])
    assert command.rows()[0]["settle"] is None
