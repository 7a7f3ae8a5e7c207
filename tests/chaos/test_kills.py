"""Workers killed, at random and at each named point of each step."""

import random
import signal
import time
from collections.abc import Callable
from functools import partial

import pytest
from chaos.scene import Scene, until

CHAOS = pytest.mark.chaos

STEPS = ("create", "find", "poll", "update", "release")
DEATHS = {
    "claimed": STEPS,
    "applied": (*STEPS, "key"),
    "answered": STEPS,
    "settled": STEPS,
}
"""The steps by the point at which a worker is killed; `key` is the second request of a create."""


def dies(scene: Scene, step: str, point: str, adapter: str) -> None:
    """Run a worker until it was killed at this point."""
    worker = scene.worker(CHAOS_FATE=f"{step}:{point}:SIGKILL:0", adapter=adapter)
    assert worker.ended() == -signal.SIGKILL, worker.log.read_text()


def ask_for(scene: Scene, step: str) -> None:
    """Bring the workspace that is named after a step to where the step comes next."""
    if step == "release":
        scene.host.removing(step)
    elif step == "update":
        scene.host.ready(step, from_name="changed")
    else:
        if step == "find":
            scene.acme.misbehave("error_after", method="POST", count=1)
        scene.host.ready(step)


@pytest.mark.parametrize(
    ("database", "point"),
    [
        pytest.param("postgres", "applied", marks=pytest.mark.postgres),
        *(pytest.param("sqlite", point, marks=CHAOS) for point in DEATHS),
        *(
            pytest.param("postgres", point, marks=[CHAOS, pytest.mark.postgres])
            for point in DEATHS
            if point != "applied"
        ),
    ],
)
def test_a_worker_killed_at_a_named_point_of_any_step_leaves_exactly_one_resource(
    make_scene: Callable[..., Scene], request: pytest.FixtureRequest, database: str, point: str
) -> None:
    url = request.getfixturevalue(f"{database}_url")
    scene = make_scene(url, ACME_PROVISIONING_SECONDS="0.2")
    scene.host.ready("update", "release")
    scene.finish()
    for step in DEATHS[point]:
        ask_for(scene, step)
        dies(scene, step, point, "Marked")
    scene.finish()
    assert scene.verdict() == {}
    assert scene.books.made_twice() == []


@pytest.mark.chaos
def test_a_killed_create_under_a_key_the_vendor_remembers_is_repeated(scene: Scene) -> None:
    for number, point in enumerate(DEATHS):
        scene.host.ready(f"ws-{number}")
        dies(scene, "create", point, "Keyed")
    scene.finish(adapter="Keyed")
    assert scene.verdict() == {}
    assert scene.books.made() == len(DEATHS)


@pytest.mark.parametrize(
    ("workers", "kills", "workspaces"),
    [(2, 3, 24), pytest.param(4, 16, 96, marks=pytest.mark.chaos)],
)
def test_workers_killed_at_random_leave_exactly_one_resource_for_each_workspace(
    scene: Scene, workers: int, kills: int, workspaces: int
) -> None:
    chance = random.Random(kills)
    scene.acme.misbehave("slow", seconds=0.05)  # so that rows are in somebody's hands for a while
    names = [f"ws-{number}" for number in range(workspaces)]
    crew = [scene.worker() for _ in range(workers)]
    each = workspaces // kills
    for kill in range(kills):
        batch = names[kill * each : (kill + 1) * each]
        scene.host.ready(*batch)
        until("a worker is busy", partial(scene.busy, *batch))
        time.sleep(chance.uniform(0.0, 0.1))  # any moment will do
        victim = chance.choice(scene.holding() or crew)
        victim.kill()
        crew[crew.index(victim)] = scene.worker()
        scene.host.ready(batch[0], from_name="changed")
        scene.host.removing(batch[-1])
    scene.settled()
    assert scene.books.made_twice() == []
    assert scene.looked_up(), "no kill hit a create in the middle"


def test_the_rows_of_a_killed_worker_are_left_alone_until_their_leases_end(
    sqlite_scene: Scene,
) -> None:
    scene = sqlite_scene
    victim = scene.worker()
    scene.acme.misbehave("slow", seconds=30)
    scene.host.ready(*(f"ws-{number}" for number in range(5)))
    until("the worker has every row in its hands", lambda: len(scene.leased(victim.owner)) == 5)
    victim.kill()
    scene.acme.behave()
    left = scene.leased(victim.owner)
    scene.worker()
    scene.taken_up(left)
    scene.settled()
    begun = {entry["tenancy_id"]: entry["at"] for entry in reversed(scene.journal())}
    assert left
    assert all(begun[row["id"]] >= row["lease_expires_at"] for row in left)
