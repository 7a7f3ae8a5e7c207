"""The vendor double keeps its world as a real vendor would."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from uuid import UUID

import pytest
from waiting import until

from nimble_lifecycle.errors import Gone, NameConflict, RateLimited, UnknownOutcome
from nimble_lifecycle.protocol import Phase, Tenancy
from nimble_lifecycle.reconciler import External, InProgress, Provisioned, Released
from nimble_lifecycle.testing import Fault, MemoryVendor, PlainMemoryVendor, World

A = Tenancy(
    id=UUID(int=1),
    tenant_id="",
    workspace_id="ws",
    kind="memory",
    incarnation=1,
    phase=Phase.PROVISIONING,
    idempotency_key="key-a",
    external_name="key-a",
    first_seen_at=datetime(2030, 1, 1, tzinfo=UTC),
)
B = replace(A, idempotency_key="key-b", external_name="key-b")


class Forgetful(MemoryVendor):
    repeatable = None


def done(method: Callable[[Tenancy], object], tenancy: Tenancy) -> object:
    result = method(tenancy)
    return asyncio.run(result) if asyncio.iscoroutine(result) else result


@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
def test_the_same_key_is_the_same_resource(adapter: type[MemoryVendor]) -> None:
    vendor = adapter()
    assert done(vendor.provision, A) == done(vendor.provision, A)
    assert done(vendor.provision, A) != done(vendor.provision, B)
    assert vendor.world.created == 2


def test_a_vendor_that_cannot_repeat_makes_a_second_one() -> None:
    vendor = Forgetful()
    assert done(vendor.provision, A) != done(vendor.provision, A)
    assert len(vendor.world.of("key-a")) == 2


@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
def test_faults_are_met_in_their_order_applied_or_not(adapter: type[MemoryVendor]) -> None:
    vendor = adapter()
    vendor.world.fail(
        "provision",
        Fault(raises=RateLimited(after=1)),
        Fault(raises=UnknownOutcome("reset"), applied=True),
    )
    with pytest.raises(RateLimited):
        done(vendor.provision, A)
    assert vendor.world.resources == {}
    with pytest.raises(UnknownOutcome):
        done(vendor.provision, A)
    assert vendor.world.created == 1
    assert isinstance(done(vendor.find, A), External)
    assert isinstance(done(vendor.provision, A), Provisioned)
    assert vendor.world.created == 1


def test_an_operation_takes_as_many_polls_as_it_was_told() -> None:
    vendor = MemoryVendor(World(polls=2, release_polls=1))
    begun = done(vendor.provision, A)
    assert isinstance(begun, InProgress)
    assert isinstance(done(vendor.find, A), InProgress)
    polled = replace(A, operation_id=begun.operation_id)
    assert isinstance(done(vendor.poll, polled), InProgress)
    made = done(vendor.poll, polled)
    assert isinstance(made, Provisioned)
    with pytest.raises(Gone):
        done(vendor.poll, polled)
    kept = replace(A, external_id=made.external_id)
    begun = done(vendor.release, kept)
    assert isinstance(begun, InProgress)
    assert done(vendor.poll, replace(kept, operation_id=begun.operation_id)) == Released()
    assert vendor.world.resources == {}


def test_a_name_can_be_taken_by_another() -> None:
    vendor = MemoryVendor(World(unique_names=True))
    theirs = vendor.world.add("ws")
    with pytest.raises(NameConflict):
        done(vendor.provision, A)
    assert done(vendor.find, A) is None
    assert list(vendor.inventory()) == []
    vendor.world.remove(theirs.external_id)
    made = done(vendor.provision, A)
    assert list(vendor.inventory()) == [External(made.external_id, key="key-a")]


def test_what_is_gone_is_gone() -> None:
    vendor = MemoryVendor()
    with pytest.raises(Gone):
        done(vendor.release, replace(A, external_id="res-1"))
    with pytest.raises(Gone):
        done(vendor.provision, replace(A, external_id="res-1"))


@pytest.mark.parametrize("adapter", [MemoryVendor, PlainMemoryVendor])
def test_a_hanging_call_goes_on_once_the_world_thaws(adapter: type[MemoryVendor]) -> None:
    vendor = adapter()
    vendor.world.fail("provision", Fault(hangs=True))
    with ThreadPoolExecutor(1) as thread:
        call = thread.submit(done, vendor.provision, A)
        until(lambda: vendor.world.in_progress == 1)
        assert vendor.world.created == 0
        vendor.world.thaw()
        assert isinstance(call.result(), Provisioned)
    assert vendor.world.in_progress == 0
