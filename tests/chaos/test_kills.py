"""Workers killed, at random and at each named point of each step."""

import random
import signal
import time
from collections.abc import Callable

import pytest

from chaos.scene import LEASE, Scene, Worker, until

DEATHS = {
    "claimed": ("create", "find", "poll", "update", "release"),
    "applied": ("create", "key", "find", "poll", "update", "release"),
    "answered": ("create", "find", "poll", "update", "release"),
    "settled": ("create", "find", "poll", "update", "release"),
}


def dies(scene: Scene, at: str, adapter: str) -> Worker:
    """Run a worker until it has killed itself at this point."""
    worker = scene.worker(CHAOS_DEATH=at, adapter=adapter)
    assert worker.ended() == -signal.SIGKILL, worker.log.read_text()
    return worker


def before(scene: Scene, step: str) -> None:
    """Bring a workspace of its own to where this step comes next."""
    if step in ("create", "key"):
        scene.host.ready(step)
    if step == "update":
        scene.host.ready(step, from_name="changed")
    if step == "release":
        scene.host.removing(step)
    if step == "find":
        scene.acme.misbehave("error_after", method="POST", count=1)
        scene.host.ready(step)
    if step == "poll":
        scene.host.ready(step)


@pytest.mark.parametrize(
    ("point", "adapter"),
    [
        ("applied", "Marked"),
        *(pytest.param(p, "Marked", marks=pytest.mark.slow) for p in DEATHS if p != "applied"),
        *(pytest.param(point, "Acme", marks=pytest.mark.slow) for point in DEATHS),
    ],
)
def test_a_worker_killed_at_a_named_point_of_any_step_leaves_exactly_one_resource(
    make_scene: Callable[..., Scene], database_url: str, point: str, adapter: str
) -> None:
    scene = make_scene(database_url, ACME_PROVISIONING_SECONDS="0.2")
    scene.host.ready("update", "release")
    scene.finish(adapter=adapter)
    for step in DEATHS[point]:
        before(scene, step)
        dies(scene, f"{step}:{point}", adapter)
    scene.finish(adapter=adapter)
    assert scene.verdict() == {}
    assert scene.books.made() == len(scene.rows())
