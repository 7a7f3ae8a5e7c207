"""Acme misbehaves, in each of its ways, while workspaces come, change and go."""

import pytest

from chaos.scene import Scene, until

FAULTS = {
    "error_after": {},
    "error_before": {},
    "drop_after": {},
    "drop_before": {},
    "slow": {"seconds": 1.0},
    "hang": {"seconds": 1.0},
    "rate_limited": {"seconds": 0.5},
    "outage": {"seconds": 0.5},
    "unauthorized": {},
    "forbidden": {},
}
"""Acme's faults and how bad they are; `slow` and `hang` last past the limit of a call."""


def live_through(scene: Scene, fault: str, adapter: str) -> None:
    """Meet a fault in each kind of step, until it has been met, and get over it."""
    scene.host.ready("changing", "going")
    scene.finish(adapter=adapter)
    scene.acme.misbehave(fault, count=6, **FAULTS[fault])
    scene.host.ready("new-1", "new-2", "new-3")
    scene.host.ready("changing", from_name="changed")
    scene.host.removing("going")
    scene.worker(adapter=adapter)
    until("the fault was met six times", lambda: not scene.acme.misbehaving())
    scene.finish(adapter=adapter)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_vendor_that_misbehaves_ends_with_exactly_one_resource_for_each_workspace(
    make_scene, sqlite_url: str, fault: str
) -> None:
    scene = make_scene(sqlite_url)
    live_through(scene, fault, "Marked")
    assert scene.verdict() == {}
    assert scene.books.made_twice() == []
