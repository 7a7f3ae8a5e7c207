"""Many at once: one live row, one owner of a lease."""

import random
import threading
from collections import Counter
from collections.abc import Callable

import psycopg
import pytest

from nimble_lifecycle.protocol import Phase, Workspace


def at_once(*work: Callable[[], object]) -> list[object]:
    """Run all of it at the same moment and give the results; an error is raised."""
    barrier = threading.Barrier(len(work))
    results: list[object] = [None] * len(work)
    errors: list[BaseException] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            results[number] = work[number]()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(work))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return results


def live(rig) -> list[dict[str, object]]:
    return [row for row in rig.rows() if row["release_started_at"] is None]


def rounds(rig) -> int:
    return 20 if rig.intents.is_sqlite else 40


def test_two_ready_and_two_removing_leave_one_live_row_at_most(rig) -> None:
    for seed in range(rounds(rig)):
        rig.empty()
        calls = [rig.ready, rig.ready, rig.removing, rig.removing]
        random.Random(seed).shuffle(calls)
        at_once(*calls)
        assert len(rig.rows()) == 1
        rig.ready()
        assert [row["desired"] for row in live(rig)] == ["wanted"]
        rig.removing()
        assert [row["desired"] for row in live(rig)] == ["release"]


def test_two_ready_racing_the_start_of_a_release_leave_one_live_wanted_row(rig) -> None:
    outcomes: Counter[int] = Counter()
    for _ in range(rounds(rig)):
        rig.empty()
        rig.make_ready()
        rig.removing()
        at_once(rig.ready, lambda: rig.claim(grace=0.0), rig.ready)
        assert [row["desired"] for row in live(rig)] == ["wanted"]
        rows = rig.rows()
        outcomes[len(rows)] += 1
        assert [row["incarnation"] for row in rows] == list(range(1, len(rows) + 1))
    assert set(outcomes) <= {1, 2}


def test_removing_racing_the_start_of_a_release_and_a_ready_is_never_refused(rig) -> None:
    for _ in range(rounds(rig)):
        rig.empty()
        rig.make_ready()
        rig.removing()
        at_once(rig.ready, lambda: rig.claim(grace=0.0), rig.removing)
        assert len(live(rig)) <= 1


def test_claimers_at_once_never_take_a_row_twice(rig) -> None:
    for number in range(60):
        rig.ready(workspace=Workspace(f"ws_{number}"))

    def claim_all() -> list[object]:
        taken = []
        while claims := rig.claim(limit=7):
            taken += [claim.tenancy.id for claim in claims]
        return taken

    taken = at_once(*[claim_all] * 4)
    ids = [id_ for part in taken for id_ in part]
    assert len(ids) == len(set(ids))
    # A claimer may find only rows another has locked and stop; none is lost.
    ids += [claim.tenancy.id for claim in rig.claim(limit=100)]
    assert len(ids) == len(set(ids)) == 60
    assert {row["lease_token"] for row in rig.rows()} == {1}


@pytest.mark.postgres
def test_a_claim_passes_by_rows_that_another_session_has_locked(postgres_rig) -> None:
    rig = postgres_rig
    rig.empty()
    for number in range(3):
        rig.ready(workspace=Workspace(f"ws_{number}"))
    with psycopg.connect(rig.url) as other:
        other.execute("SELECT 1 FROM nimble_tenancy WHERE workspace_id = 'ws_0' FOR UPDATE")
        taken = rig.claim()
    assert {claim.tenancy.workspace_id for claim in taken} == {"ws_1", "ws_2"}


def test_settling_and_host_calls_at_once_keep_both(rig) -> None:
    for number in range(rounds(rig) // 2):
        rig.empty()
        rig.ready({"n": 0})
        claim = rig.claim_one()
        at_once(
            lambda claim=claim: rig.settle(claim, Phase.READY, external_id="x1", finished=True),
            lambda number=number: rig.ready({"n": number + 1}),
        )
        row = rig.row()
        assert (row["phase"], row["params"]) == ("ready", {"n": number + 1})
        assert (row["generation"], row["observed_generation"]) == (2, 1)
        assert rig.claim_one().step == "update"
