"""The conformance suite finds each mistake for its own reason, and touches nothing else."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from functools import partial

import pytest
from broken import (
    BROKEN,
    DeniesWhatItMade,
    ListsWhatIsGone,
    LooksUpOnly,
    Slow,
    TooSlowOnAThread,
)
from depot import Depot, DepotSandbox, Sound, Thing, plain_words
from pydantic import BaseModel

from nimble_lifecycle.errors import (
    ConfigurationError,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    VendorError,
)
from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler import External, InProgress, Provisioned, Released, Vendor
from nimble_lifecycle.store import Threads
from nimble_lifecycle.testing import (
    MemoryVendor,
    PlainMemoryVendor,
    Report,
    Sandbox,
    Trouble,
    Verdict,
    World,
    check_vendor,
)
from nimble_lifecycle.testing.conformance.bench import Bench, Finding, lookalike
from nimble_lifecycle.testing.conformance.observed import one_each
from nimble_lifecycle.testing.conformance.suite import FIRST, LAST, REST, RESTS_ON

UNFIT: dict[type[Sound], set[str]] = {
    Sound: {"operation", "forgotten-operation"},
    Slow: set(),
    LooksUpOnly: {"repeat", "repeat-at-once"},
}
"""Sound adapters, and the checks that do not fit them."""


def checked(vendor: Sound, sandbox: Sandbox | None = None, **how: object) -> Report:
    """Run the suite with the other view of the adapter's depot."""
    return tried(vendor, sandbox or DepotSandbox(vendor.depot), **how)


def tried(adapter: Sound | Callable[[], Sound], sandbox: Sandbox, **how: object) -> Report:
    """Run the suite on an adapter, or on one after the other that is made."""
    given = {"params": {"size": 1}, "changed_params": {"size": 2}, "timeout": 30.0, **how}
    return asyncio.run(check_vendor(adapter, sandbox=sandbox, **given))


def verdicts(report: Report) -> dict[str, Verdict]:
    return {each.check: each.verdict for each in report.checks}


def words(report: Report, check: str) -> str:
    return next(each.words for each in report.checks if each.check == check)


# -- what it finds ---------------------------------------------------------------------------------


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.__name__)
def test_a_mistake_is_found_for_its_own_reason_and_cleaned_up(broken: type[Sound]) -> None:
    depot = Depot()
    theirs = depot.create("a name of somebody's", None)
    report = tried(partial(broken, depot), DepotSandbox(depot))
    assert set(report.failed) == BROKEN[broken], str(report)
    assert all(words(report, check) for check in report.failed)
    depot.things.pop(theirs.id, None)
    assert depot.things == {}
    assert "untouched" in report.failed or (theirs.active, theirs.size) == (False, None)


@pytest.mark.parametrize("adapter", UNFIT)
def test_a_sound_adapter_passes_every_check_that_fits_it(adapter: type[Sound]) -> None:
    depot = Depot()
    depot.create("a name of somebody's", None)
    report = tried(partial(adapter, depot), DepotSandbox(depot))
    assert report.ok, str(report)
    unfit = {each.check for each in report.checks if each.verdict is not Verdict.OK}
    assert unfit == UNFIT[adapter]
    assert depot.made > 20
    assert [thing.mark for thing in depot.things.values()] == [None]


@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
@pytest.mark.parametrize(
    "world", [{}, {"polls": 2, "release_polls": 2}, {"unique_names": True}], ids=str
)
def test_the_doubles_of_the_kit_pass(adapter: type[Vendor], world: dict[str, int]) -> None:
    vendor = adapter(World(**world))
    report = asyncio.run(check_vendor(vendor))
    assert report.ok, str(report)
    assert vendor.world.created > 10
    assert vendor.world.resources == {}


@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
def test_a_class_whose_vendor_is_in_the_object_is_only_warned(adapter: type[Vendor]) -> None:
    report = asyncio.run(check_vendor(adapter))
    assert report.ok, str(report)
    assert verdicts(report)["next-worker"] is Verdict.WARNING


def test_every_check_has_a_mistake_that_it_finds() -> None:
    found = set().union(*BROKEN.values()) | {"one-each"}  # which has a test of its own
    assert found == FIRST.keys() | REST.keys() | LAST.keys()
    assert RESTS_ON.keys() <= REST.keys()
    assert set().union(*RESTS_ON.values()) <= REST.keys()


def test_of_one_object_it_says_that_the_next_worker_cannot_be_told() -> None:
    report = checked(Sound())
    assert report.ok, str(report)
    assert verdicts(report)["next-worker"] is Verdict.NOT_CHECKED
    assert "the adapter's class" in words(report, "next-worker")


def test_changed_params_that_change_nothing_the_vendor_shows_are_warned_of() -> None:
    class IgnoresChanges(Sound):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            if tenancy.external_id is None:
                return await super().provision(tenancy)
            with plain_words():
                await self.depot.ask(lambda: self.depot.get(tenancy.external_id))
            return Provisioned(str(tenancy.external_id), tenancy.details)

    report = checked(IgnoresChanges())
    assert report.ok, str(report)
    assert verdicts(report)["update"] is Verdict.WARNING
    assert "shows" in words(report, "update")
    report = checked(IgnoresChanges(), changed_params={"size": 1})
    assert verdicts(report)["update"] is Verdict.OK


def test_an_inventory_that_lists_what_is_gone_is_found_by_find_and_nothing_is_left_behind() -> None:
    report = checked(ListsWhatIsGone(), Sandbox())
    assert report.failed == ["inventory-released"]
    assert "gone by find" in words(report, "inventory-released")
    assert report.left_behind == []


def test_a_create_that_is_applied_and_denied_is_found_without_a_sandbox() -> None:
    report = checked(DeniesWhatItMade(), Sandbox())
    assert report.failed == ["certain-errors"]
    assert "TemporaryError" in words(report, "certain-errors")


def test_without_a_sandbox_it_says_what_was_not_checked_and_why() -> None:
    vendor = Sound()
    report = asyncio.run(check_vendor(vendor))
    assert report.ok
    missing = {each.check: each.words for each in report.checks if "Sandbox" in each.words}
    assert missing.keys() == {
        *("made", "name-taken", "credential", "rate-limit", "unreachable"),
        *("no-answer", "lost-answer"),
    }
    assert all(verdicts(report)[check] is Verdict.NOT_CHECKED for check in missing)
    assert vendor.depot.things == {}


def test_what_a_sandbox_cannot_make_is_not_checked() -> None:
    class Half(DepotSandbox):
        def under(self, vendor: Vendor, trouble: Trouble, after: int = 0) -> object:
            if trouble is not Trouble.UNREACHABLE:
                raise NotImplementedError
            return super().under(vendor, trouble, after)

    vendor = Sound()
    found = verdicts(checked(vendor, Half(vendor.depot)))
    assert found["unreachable"] is Verdict.OK
    assert found["credential"] is found["lost-answer"] is Verdict.NOT_CHECKED


def test_a_sandbox_that_fails_is_told_of() -> None:
    class Failing(DepotSandbox):
        async def occupy(self, tenancy: Tenancy) -> str:
            raise OSError("https://admin:hunter2@acme.test refused")

    vendor = Sound()
    report = checked(vendor, Failing(vendor.depot))
    assert report.failed == ["name-taken"]
    assert "OSError" in words(report, "name-taken")
    assert "hunter2" not in str(report)


def test_an_adapter_that_can_settle_nothing_is_warned_of_and_passes() -> None:
    class Neither(Sound):
        repeatable = None
        find = Vendor.find

    report = checked(Neither())
    assert report.ok, str(report)
    found = verdicts(report)
    assert found["declarations"] is Verdict.WARNING
    assert found["interrupted-create"] is found["lost-answer"] is Verdict.NOT_CHECKED
    assert "person" in words(report, "declarations")


def test_an_adapter_that_keeps_is_never_asked_to_release() -> None:
    class Keeps(Sound):
        on_release = "keep"

        async def release(self, tenancy: Tenancy) -> Released | InProgress:
            raise PermanentError("it keeps")

    vendor = Keeps()
    report = checked(vendor)
    assert report.ok, str(report)
    assert verdicts(report)["release"] is Verdict.NOT_CHECKED
    assert vendor.depot.things == {}


def test_a_stray_that_shows_late_is_found_at_the_end() -> None:
    async def look() -> None:
        vendor = Sound()
        threads = Threads(1, "test")
        bench = Bench(
            vendor=vendor,
            sandbox=DepotSandbox(vendor.depot),
            threads=threads,
            params={},
            changed_params={},
            timeout=1.0,
            crowd=1,
        )
        await one_each(bench)
        vendor.depot.create("late", f"{bench.owner}-late")
        with pytest.raises(Finding, match="no row knows of"):
            await one_each(bench)
        threads.close()

    asyncio.run(look())


def test_a_vendor_that_asks_for_patience_gets_it() -> None:
    asked = Counter[str]()

    class Limited(Sound):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            self.limit("provision")
            return await super().provision(tenancy)

        async def find(self, tenancy: Tenancy) -> External | InProgress | None:
            self.limit("find")
            return await super().find(tenancy)

        async def release(self, tenancy: Tenancy) -> Released | InProgress:
            self.limit("release")
            return await super().release(tenancy)

        def limit(self, method: str) -> None:
            asked[method] += 1
            if asked[method] % 2:
                raise RateLimited(after=0.001)

    report = checked(Limited(), Sandbox())
    assert report.ok, str(report)


def test_a_name_that_is_taken_is_no_temporary_error_and_patience_has_an_end() -> None:
    class TakenIsTemporary(Sound):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            try:
                return await super().provision(tenancy)
            except NameConflict:
                raise TemporaryError("try again") from None

    report = checked(TakenIsTemporary(), timeout=0.6)
    assert report.failed == ["name-taken"]
    assert "TemporaryError" in words(report, "name-taken")


def test_an_error_shows_no_secret() -> None:
    class Leaks(Sound):
        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            raise RuntimeError("postgresql://admin:hunter2@acme/db")

    report = checked(Leaks())
    assert report.failed == ["provision"]
    assert "RuntimeError" in str(report)
    assert "hunter2" not in str(report)


@pytest.mark.parametrize(
    ("name", "made_up"),
    [("res-1", None), ("", None), ("ten_0123456789abcdef", "ten_"), ("a.b/" + "9" * 12, "a.b/")],
)
def test_an_id_is_made_up_only_where_it_cannot_be_anybodys(name: str, made_up: str | None) -> None:
    other = lookalike(name)
    if made_up is None:
        assert other is None
    else:
        assert other is not None
        assert other != name
        assert (other.startswith(made_up), len(other)) == (True, len(name))
        assert [c.isdigit() for c in other] == [c.isdigit() for c in name]


# -- what it leaves --------------------------------------------------------------------------------


def test_what_cannot_be_removed_is_listed() -> None:
    class Stays(Sound):
        async def release(self, tenancy: Tenancy) -> Released | InProgress:
            raise PermanentError("never")

    class Lists(Sandbox):
        def __init__(self, depot: Depot) -> None:
            self.resources = DepotSandbox(depot).resources

        @classmethod
        def implements(cls, method: str) -> bool:
            return method == "resources"

    vendor = Stays()
    report = checked(vendor, Lists(vendor.depot))
    assert not report.ok
    assert {each.external_id for each in report.left_behind} == set(vendor.depot.things)
    assert {each.key for each in report.left_behind} == {
        thing.mark for thing in vendor.depot.things.values()
    }


def test_what_a_call_made_that_came_too_late_is_removed_too() -> None:
    vendor = TooSlowOnAThread()
    report = checked(vendor, Sandbox())
    assert report.failed == ["time-limit"]
    assert report.left_behind == []
    assert (vendor.depot.made, vendor.depot.things) == (1, {})


def test_there_are_never_many_at_once() -> None:
    class Narrow(Depot):
        most = 0

        def create(self, name: str, mark: str | None, key: str | None = None) -> Thing:
            thing = super().create(name, mark, key)
            self.most = max(self.most, len(self.things))
            return thing

    depot = Narrow()
    assert checked(Sound(depot)).ok
    assert depot.made > 40
    assert depot.most <= 10


def test_a_run_that_is_cancelled_cleans_up_too() -> None:
    vendor = Slow()

    async def cancelled() -> None:
        def progress(done: object, name: str) -> None:
            if name == "release-again":
                run.cancel()

        run = asyncio.ensure_future(
            check_vendor(vendor, sandbox=DepotSandbox(vendor.depot), progress=progress)
        )
        with suppress(asyncio.CancelledError):
            await run
        assert run.cancelled()

    asyncio.run(cancelled())
    assert vendor.depot.made > 5
    assert vendor.depot.things == {}


def test_of_what_was_there_before_nothing_is_released_whatever_the_adapter_finds() -> None:
    """Its find gives whatever there is; then that must not be cleaned up as if it were ours."""

    class FindsAnything(Sound):
        def is_it(self, thing: object, tenancy: Tenancy) -> bool:
            return True

    depot = Depot()
    theirs = depot.create("theirs", "another-deployments")
    theirs.active = True
    report = checked(FindsAnything(depot), Sandbox())
    assert "find" in report.failed
    assert list(depot.things) == [theirs.id]


# -- how it is called ------------------------------------------------------------------------------


class Plan(BaseModel):
    size: int


def test_params_that_do_not_fit_are_wrong_use() -> None:
    class Sized(Sound):
        params_model = Plan

    for params in ({"params": {}}, {"params": {"size": 1}, "changed_params": {"size": "x"}}):
        with pytest.raises(ConfigurationError, match=r"size.*--params"):
            checked(Sized(), **params)
    assert checked(Sized()).ok


class Opened(Sound):
    """An adapter that must be opened first."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []

    async def __aenter__(self) -> "Opened":
        self.log.append("opened")
        return self

    async def __aexit__(self, *_: object) -> None:
        self.log.append("closed")

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        assert self.log == ["opened"]
        return await super().provision(tenancy)


def test_an_adapter_is_opened_once_and_closed_after_cleaning_up() -> None:
    vendor = Opened()
    assert checked(vendor).ok
    assert vendor.log == ["opened", "closed"]


def test_of_a_class_each_object_is_opened_before_it_is_called_and_closed_after() -> None:
    depot, objects = Depot(), list[Opened]()

    def make() -> Opened:
        objects.append(Opened())
        objects[-1].depot = depot
        return objects[-1]

    report = tried(make, DepotSandbox(depot))
    assert report.ok, str(report)
    assert len(objects) > 10
    assert all(each.log == ["opened", "closed"] for each in objects)


@pytest.mark.parametrize(
    ("raised", "seen"),
    [
        (ConfigurationError("set ACME_TOKEN"), ConfigurationError),
        (OSError("https://admin:hunter2@acme.test"), VendorError),
    ],
)
def test_an_adapter_that_cannot_be_opened_is_no_finding(
    raised: Exception, seen: type[Exception]
) -> None:
    class Closed(Opened):
        async def __aenter__(self) -> "Opened":
            raise raised

    with pytest.raises(seen) as caught:
        checked(Closed())
    assert "hunter2" not in str(caught.value)


def test_a_trouble_may_come_with_an_adapter_of_its_own() -> None:
    """As where a wrong credential takes another client."""

    class Other(DepotSandbox):
        @asynccontextmanager
        async def under(
            self, vendor: Vendor, trouble: Trouble, after: int = 0
        ) -> AsyncIterator[Vendor]:
            async with super().under(Sound(self.depot), trouble, after) as other:
                yield other

    class NeverTroubled(Sound):
        time_limit = timedelta(seconds=9)

        async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
            assert self.depot.trouble is None
            return await super().provision(tenancy)

    vendor = NeverTroubled()
    assert checked(vendor, Other(vendor.depot)).ok
