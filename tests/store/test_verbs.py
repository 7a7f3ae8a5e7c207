"""The operator's verbs: what each does to rows, what it refuses, and what the journal says."""

import threading
from collections.abc import Callable
from datetime import timedelta
from uuid import UUID, uuid4

import pytest
import sqlalchemy as sa

from nimble_lifecycle.errors import VerbRefused
from nimble_lifecycle.protocol import FLEET, Phase, Workspace
from nimble_lifecycle.store import By, OperatorStore, Step
from nimble_lifecycle.store.models import vendor
from tests.store.sent import statements_sent

ME = By("ada", "ticket 7")


@pytest.fixture
def operator(rig):
    store = OperatorStore(rig.url, clock=rig.clock)
    yield store
    store.close()


# -- rows in every state ---------------------------------------------------------------------------


def never_begun(rig) -> None:
    rig.ready()


def creating(rig) -> None:
    rig.ready()
    rig.claim_one()


def lost(rig) -> None:
    creating(rig)
    rig.clock.advance(31)


def backing_off(rig) -> None:
    rig.ready()
    settle(rig, Phase.PENDING, reason="BackingOff", attempts=7, creates=0, delay=600.0)


def unresolved(rig) -> None:
    rig.ready()
    settle(rig, Phase.UNRESOLVED, reason="BackingOff", attempts=7, delay=600.0)


def unknown(rig) -> None:
    rig.ready()
    settle(rig, Phase.STALLED, reason="CreateOutcomeUnknown")
    rig.clock.advance(60)


def conflict(rig) -> None:
    rig.ready()
    settle(rig, Phase.STALLED, reason="NameConflict", creates=0)


def invalid(rig) -> None:
    rig.ready()
    settle(rig, Phase.STALLED, reason="InvalidParams", creates=0)


def quarantined(rig) -> None:
    rig.ready()
    settle(rig, Phase.STALLED, reason="Quarantined")
    rig.clock.advance(60)


def is_ready(rig) -> None:
    rig.make_ready()


def updating(rig) -> None:
    rig.make_ready({"v": 1})
    rig.ready({"v": 2})
    rig.claim_one()


def refused(rig) -> None:
    rig.make_ready({"v": 1})
    rig.ready({"v": 2})
    settle(rig, Phase.READY, reason="PlanUnknown")


def asked(rig) -> None:
    rig.make_ready()
    rig.removing()


def asked_unknown(rig) -> None:
    unknown(rig)
    rig.removing()
    assert rig.claim() == []


def asked_unresolved(rig) -> None:
    unresolved(rig)
    rig.removing()
    assert rig.claim() == []


def releasing(rig) -> None:
    asked(rig)
    rig.claim_one(grace=0.0)


def release_waits(rig) -> None:
    asked(rig)
    settle(rig, Phase.RELEASING, grace=0.0, reason="PermissionDenied", attempts=4, delay=600.0)


def release_stalled(rig) -> None:
    asked(rig)
    settle(rig, Phase.STALLED, grace=0.0, reason="Rejected")


def released(rig) -> None:
    asked(rig)
    settle(rig, Phase.RELEASED, grace=0.0, finished=True)


def kept(rig) -> None:
    asked(rig)
    assert rig.claim(grace=0.0, keeps=True) == []


def retired(rig) -> None:
    rig.make_ready()
    rig.change(retired_at=rig.clock.instant)


def settle(rig, phase: Phase, **more: object) -> None:
    claim = rig.claim_one(grace=more.pop("grace", 3600.0))
    assert rig.settle(claim, phase, **more)


# -- verbs -----------------------------------------------------------------------------------------

Verb = Callable[[OperatorStore, UUID], None]

VERBS: dict[str, Verb] = {
    "retry": lambda store, row: store.retry(row, ME),
    "assume": lambda store, row: store.retry(row, ME, assume_not_created=True),
    "release": lambda store, row: store.release(row, ME),
    "undo": lambda store, row: store.undo(row, ME),
    "adopt": lambda store, row: store.adopt(row, "x9", ME),
    "abandon": lambda store, row: store.abandon(row, ME),
    "pause": lambda store, row: store.pause_row(row, ME),
    "resume": lambda store, row: store.resume_row(row, ME),
}

FINE, OVER, STARTED = "nothing to retry", "its life is over", "its release has started"
SURE, CALLING, UNKNOWN = "no create of unknown outcome", "is calling", "could make a second"
NOT_ASKED, HAS, WANTED = "no release is asked for", "has a resource already", "wants it"
GOES_ON, UNPAUSED, BEGUN = "goes on by itself", "not paused", "its create is under way"
OK = None

# What each verb is refused with, in the order of VERBS.
ALLOWED: dict[Callable[[object], None], tuple[str | None, ...]] = {
    never_begun: (FINE, SURE, OK, NOT_ASKED, OK, WANTED, OK, UNPAUSED),
    creating: (CALLING, CALLING, OK, NOT_ASKED, CALLING, WANTED, OK, UNPAUSED),
    lost: (OK, SURE, OK, NOT_ASKED, BEGUN, WANTED, OK, UNPAUSED),
    backing_off: (OK, SURE, OK, NOT_ASKED, OK, WANTED, OK, UNPAUSED),
    unresolved: (OK, SURE, OK, NOT_ASKED, OK, WANTED, OK, UNPAUSED),
    unknown: (UNKNOWN, OK, OK, NOT_ASKED, OK, OK, OK, UNPAUSED),
    conflict: (OK, SURE, OK, NOT_ASKED, OK, OK, OK, UNPAUSED),
    invalid: (OK, SURE, OK, NOT_ASKED, OK, OK, OK, UNPAUSED),
    quarantined: (OK, OK, OK, NOT_ASKED, OK, OK, OK, UNPAUSED),
    is_ready: (FINE, SURE, OK, NOT_ASKED, HAS, WANTED, OK, UNPAUSED),
    updating: (CALLING, CALLING, OK, NOT_ASKED, HAS, WANTED, OK, UNPAUSED),
    refused: (OK, SURE, OK, NOT_ASKED, HAS, WANTED, OK, UNPAUSED),
    asked: (GOES_ON, GOES_ON, OK, OK, HAS, OK, OK, UNPAUSED),
    asked_unknown: (UNKNOWN, OK, OK, OK, OK, OK, OK, UNPAUSED),
    asked_unresolved: (OK, SURE, OK, OK, OK, OK, OK, UNPAUSED),
    releasing: (CALLING, CALLING, STARTED, STARTED, STARTED, OK, OK, UNPAUSED),
    release_waits: (OK, SURE, STARTED, STARTED, STARTED, OK, OK, UNPAUSED),
    release_stalled: (OK, SURE, STARTED, STARTED, STARTED, OK, OK, UNPAUSED),
    released: (OVER, OVER, OVER, OVER, OVER, OVER, OVER, UNPAUSED),
    kept: (OVER, OVER, OVER, OVER, OVER, OVER, OVER, UNPAUSED),
    retired: (OVER, OVER, OVER, OVER, OVER, OVER, OVER, UNPAUSED),
}


@pytest.mark.parametrize("state", ALLOWED, ids=lambda state: state.__name__)
@pytest.mark.parametrize("name", VERBS)
def test_a_verb_does_it_and_says_who_and_why_or_says_which_rule_forbids_it(
    rig, operator: OperatorStore, state: Callable[[object], None], name: str
) -> None:
    words = dict(zip(VERBS, ALLOWED[state], strict=True))[name]
    state(rig)
    before, entries = rig.row(), rig.journal()
    row = before["id"]
    if words is not None:
        with pytest.raises(VerbRefused, match=words):
            VERBS[name](operator, row)
        assert (rig.row(), rig.journal()) == (before, entries)
        return
    VERBS[name](operator, row)
    after = rig.row()
    assert after["lease_token"] == before["lease_token"] + 1
    assert after["lease_owner"] is None
    entry = rig.journal()[-1]
    action = "retry" if name == "assume" else name
    assert len(rig.journal()) == len(entries) + 1
    assert (entry["actor"], entry["note"]) == ("ada", "ticket 7")
    assert (entry["action"], entry["tenancy_id"]) == (f"operator: {action}", row)
    assert (entry["kind"], entry["at"], entry["settled"]) == ("acme", rig.clock.instant, True)
    assert entry["lease_token"] == after["lease_token"]
    assert entry["generation"] == after["generation"]
    assert entry["external_id"] == after["external_id"]


@pytest.mark.parametrize("state", [s for s in ALLOWED if ALLOWED[s][6] is OK])
def test_a_pause_leaves_everything_as_it_was(rig, operator: OperatorStore, state) -> None:
    state(rig)
    before = rig.row()
    operator.pause_row(before["id"], ME)
    assert rig.claim(grace=0.0) == []
    rig.clock.advance(7200)
    assert rig.claim(grace=0.0) == []
    rig.change(paused=False)
    changed = ("lease_token", "lease_owner", "lease_expires_at")
    for name, value in rig.row().items():
        assert name in changed or value == before[name]
    with pytest.raises(VerbRefused, match="not paused"):
        operator.resume_row(before["id"], ME)


@pytest.mark.parametrize("name", VERBS)
def test_a_row_that_is_not_there_is_refused(rig, operator: OperatorStore, name: str) -> None:
    with pytest.raises(VerbRefused, match="no such row"):
        VERBS[name](operator, uuid4())
    assert rig.journal() == []


# -- a worker in the middle ------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["release", "pause"])
def test_a_verb_takes_the_row_from_its_worker_but_nobody_calls_before_its_call_must_have_ended(
    rig, operator: OperatorStore, name: str
) -> None:
    rig.ready()
    claim = rig.claim_one()
    VERBS[name](operator, claim.tenancy.id)
    if name == "pause":
        operator.resume_row(claim.tenancy.id, ME)
    rig.clock.advance(29)
    assert rig.claim() == [], "the call may still run"
    assert not rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    row = rig.row()
    assert (row["phase"], row["external_id"]) == ("provisioning", "x1"), "noted, so never lost"
    rig.clock.advance(2)
    rig.claim()
    row = rig.row()
    assert (row["phase"], row["created_at"]) == ("ready", rig.clock.instant)
    assert row["reclaims"] == 0, "no worker died"


def test_a_row_taken_from_its_worker_is_no_suspect(rig, operator: OperatorStore) -> None:
    rig.ready()
    for _ in range(4):
        claim = rig.claim_one()
        operator.pause_row(claim.tenancy.id, ME)
        operator.resume_row(claim.tenancy.id, ME)
        rig.clock.advance(31)
    assert rig.claim_one().reclaims == 0


def test_a_busy_row_stays_busy_until_its_call_must_have_ended(rig, operator) -> None:
    rig.ready()
    operator.release(rig.claim_one().tenancy.id, ME)
    assert rig.busy(within=0.0)
    rig.clock.advance(31)
    rig.claim()


# -- retry -----------------------------------------------------------------------------------------

RETRIED = {
    lost: Step.FIND,
    backing_off: Step.CREATE,
    unresolved: Step.FIND,
    conflict: Step.CREATE,
    invalid: Step.CREATE,
    quarantined: Step.FIND,
    refused: Step.UPDATE,
    asked_unresolved: Step.FIND,
    release_waits: Step.RELEASE,
    release_stalled: Step.RELEASE,
}


@pytest.mark.parametrize("state", RETRIED, ids=lambda state: state.__name__)
def test_what_is_retried_is_tried_at_once_with_its_counts_forgotten(rig, operator, state) -> None:
    state(rig)
    rig.change(reclaims=2)
    operator.retry(rig.row()["id"], ME)
    claim = rig.claim_one()
    assert (claim.step, claim.attempts, claim.reclaims) == (RETRIED[state], 0, 0)


@pytest.mark.parametrize(
    ("changes", "step"),
    [
        ({"operation_id": "op-1"}, Step.POLL),
        ({"operation_id": "op-1", "external_id": "x1"}, Step.POLL),
        ({"external_id": "x1", "created_at": None}, None),
        ({"creates": 0}, Step.CREATE),
    ],
)
def test_a_quarantined_row_goes_on_where_it_was(rig, operator, changes, step) -> None:
    quarantined(rig)
    rig.change(**changes)
    operator.retry(rig.row()["id"], ME)
    assert [claim.step for claim in rig.claim()] == ([] if step is None else [step])
    assert rig.row()["phase"] in ("provisioning", "ready")


def test_a_quarantined_operation_of_a_release_is_asked_about_again(rig, operator) -> None:
    release_stalled(rig)
    rig.change(reason="Quarantined", operation_id="op-1", operation_deadline_at=rig.after(60))
    operator.retry(rig.row()["id"], ME)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.phase) == (Step.POLL, Phase.RELEASING)


def test_a_create_of_unknown_outcome_is_repeated_on_an_operators_word_under_its_key(
    rig, operator
) -> None:
    unknown(rig)
    before = rig.row()
    operator.retry(before["id"], ME, assume_not_created=True)
    assert rig.journal()[-1]["outcome"] == "assumed not created"
    claim = rig.claim_one()
    assert (claim.step, claim.creates) == (Step.CREATE, 1)
    assert claim.tenancy.idempotency_key == before["idempotency_key"]
    assert rig.row()["create_started_at"] == before["create_started_at"], "what the vendor counts"


def test_an_operators_word_does_not_begin_a_create_while_the_last_one_can_still_run(
    rig, operator
) -> None:
    rig.ready({"v": 1})
    settle(rig, Phase.STALLED, reason="CreateOutcomeUnknown")
    operator.retry(rig.row()["id"], ME, assume_not_created=True)
    rig.ready({"v": 2})
    rig.clock.advance(29)
    assert rig.claim() == []
    rig.clock.advance(2)
    claim = rig.claim_one()
    assert (claim.step, claim.reclaims) == (Step.CREATE, 0)


def test_what_was_not_created_and_is_to_be_released_is_dropped_after_its_grace(
    rig, operator
) -> None:
    asked_unknown(rig)
    rig.clock.advance(7200)
    assert rig.claim() == []
    assert rig.row()["phase"] == "stalled", "it may have a resource that nobody knows"
    operator.retry(rig.row()["id"], ME, assume_not_created=True)
    assert rig.claim() == []
    assert rig.row()["phase"] == "released"


# -- release and undo ------------------------------------------------------------------------------


def test_an_operators_release_waits_for_the_grace_and_no_ready_lifts_it(rig, operator) -> None:
    rig.make_ready()
    operator.release(rig.row()["id"], ME)
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(3600)
    rig.clock.advance(3000)
    assert rig.ready().tenancy.phase is Phase.RELEASE_PENDING
    assert rig.claim() == []
    rig.clock.advance(601)
    assert rig.claim_one().step is Step.RELEASE


def test_use_holds_an_operators_release_too(rig, operator) -> None:
    rig.make_ready()
    operator.release(rig.row()["id"], ME)
    rig.claim()
    rig.clock.advance(3000)
    rig.touch()
    rig.clock.advance(601)
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(3600 - 601)


def test_a_release_asked_for_again_after_an_undo_nobody_saw_has_a_whole_grace(
    rig, operator
) -> None:
    rig.make_ready()
    row = rig.row()["id"]
    operator.release(row, ME)
    rig.claim()
    rig.clock.advance(3000)
    operator.undo(row, ME)
    operator.release(row, ME)
    rig.clock.advance(601)
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(3600)


def test_an_operators_release_of_what_the_host_released_keeps_its_grace(rig, operator) -> None:
    asked(rig)
    rig.claim()
    rig.clock.advance(3000)
    operator.release(rig.row()["id"], ME)
    assert rig.claim() == []
    assert rig.row()["release_after"] == rig.after(600)
    rig.ready()
    rig.clock.advance(601)
    assert rig.claim_one().step is Step.RELEASE


def test_what_was_never_begun_is_released_at_once(rig, operator) -> None:
    rig.ready()
    operator.release(rig.row()["id"], ME)
    assert rig.claim() == []
    assert rig.row()["phase"] == "released"


UNDONE = [never_begun, backing_off, unresolved, unknown, conflict, quarantined, is_ready, refused]


@pytest.mark.parametrize("ask", ["host", "operator", "both"])
@pytest.mark.parametrize("state", UNDONE, ids=lambda state: state.__name__)
def test_an_undo_leaves_the_row_exactly_as_it_was(rig, operator, state, ask: str) -> None:
    state(rig)
    if state is never_begun:
        rig.clock.advance(1)
    else:
        rig.claim()
    before = rig.row()
    if ask in ("host", "both"):
        rig.removing()
    if ask in ("operator", "both"):
        operator.release(before["id"], ME)
    if state is not never_begun:
        assert rig.claim() == []
    rig.clock.advance(5)
    operator.undo(before["id"], ME)
    if state is not never_begun:
        assert rig.claim() == []
    after = rig.row()
    counted = {"generation", "claimed_generation", "lease_token", "generation_at"}
    # A row with nothing to do has done what the last generation asked for.
    counted |= {"last_seen_at", "last_reason", "observed_generation"}
    assert {name for name, value in after.items() if value != before[name]} <= counted


def test_an_undo_and_the_start_of_a_release_have_one_winner(real_rig) -> None:
    operator = OperatorStore(real_rig.url)
    outcomes = set()
    for _ in range(25):
        real_rig.empty()
        real_rig.make_ready()
        real_rig.removing()
        row = real_rig.row()["id"]
        claims: list[object] = []
        both = threading.Barrier(2)

        def release(claims=claims, both=both) -> None:
            both.wait()
            claims.extend(real_rig.claim(grace=0.0))

        thread = threading.Thread(target=release)
        thread.start()
        both.wait()
        try:
            operator.undo(row, ME)
            undone = True
        except VerbRefused:
            undone = False
        thread.join()
        assert undone != (real_rig.row()["release_started_at"] is not None)
        assert bool(claims) != undone
        outcomes.add(undone)
    operator.close()
    assert outcomes


# -- adopt -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [never_begun, unknown, conflict, unresolved, backing_off])
def test_what_is_adopted_is_brought_to_the_params_and_stays_the_rows(rig, operator, state) -> None:
    state(rig)
    operator.adopt(rig.row()["id"], "theirs", ME)
    row = rig.row()
    assert (row["phase"], row["reason"], row["external_id"]) == ("ready", None, "theirs")
    assert (row["created_at"], row["creates"]) == (rig.clock.instant, 0)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.external_id) == (Step.UPDATE, "theirs")
    assert rig.settle(claim, Phase.READY, external_id="theirs", finished=True)
    assert rig.claim() == []
    assert rig.row()["observed_generation"] == 1


def test_what_is_adopted_for_a_release_is_released_after_its_grace(rig, operator) -> None:
    asked_unknown(rig)
    operator.adopt(rig.row()["id"], "x9", ME)
    assert rig.claim() == []
    rig.clock.advance(3601)
    claim = rig.claim_one()
    assert (claim.step, claim.tenancy.external_id) == (Step.RELEASE, "x9")


def test_a_late_create_does_not_replace_what_was_adopted(rig, operator) -> None:
    rig.ready()
    claim = rig.claim_one()
    rig.settle(claim, Phase.UNRESOLVED, delay=0.0)
    operator.adopt(claim.tenancy.id, "x9", ME)
    assert not rig.settle(claim, Phase.READY, outcome="late", external_id="x1", finished=True)
    assert rig.row()["external_id"] == "x9"
    assert rig.journal()[-1]["external_id"] == "x1", "a surplus, known by the journal"


def test_the_resource_of_another_row_is_not_adopted(rig, operator) -> None:
    rig.make_ready(external_id="x1")
    rig.ready(workspace=Workspace("ws_2"))
    (_, second) = rig.rows()
    with pytest.raises(VerbRefused, match="another row has this resource"):
        operator.adopt(second["id"], "x1", ME)
    assert rig.rows()[1] == second


def test_the_resource_of_a_released_row_can_be_adopted(rig, operator) -> None:
    released(rig)
    rig.ready()
    operator.adopt(rig.rows()[1]["id"], "x1", ME)
    assert rig.rows()[1]["external_id"] == "x1"


def test_two_adoptions_of_one_resource_at_once_have_one_winner(real_rig) -> None:
    operator = OperatorStore(real_rig.url)
    for round_ in range(10):
        real_rig.empty()
        names = ("a", "b")
        for name in names:
            real_rig.ready(workspace=Workspace(name))
        refusals: list[VerbRefused] = []
        both = threading.Barrier(2)

        def adopt(row: UUID, both=both, refusals=refusals) -> None:
            both.wait()
            try:
                operator.adopt(row, "x1", ME)
            except VerbRefused as refused:
                refusals.append(refused)

        threads = [threading.Thread(target=adopt, args=(row["id"],)) for row in real_rig.rows()]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [row["external_id"] for row in real_rig.rows()].count("x1") == 1, round_
        assert len(refusals) == 1
        assert "another row has this resource" in str(refusals[0])
        assert len(real_rig.journal()) == 1
    operator.close()


@pytest.mark.parametrize("name", ["", "  ", "a\nb", "a\0b", "x" * 1025, "\ud800"])
def test_what_no_vendor_may_give_is_not_adopted(rig, operator, name: str) -> None:
    rig.ready()
    with pytest.raises(VerbRefused, match="no vendor may give"):
        operator.adopt(rig.row()["id"], name, ME)


# -- abandon ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [unknown, conflict, asked, release_waits, release_stalled])
def test_what_is_abandoned_is_kept_and_the_next_ready_begins_a_new_life(
    rig, operator, state
) -> None:
    state(rig)
    resource = rig.row()["external_id"]
    operator.abandon(rig.row()["id"], By("ada", "credential revoked"))
    row = rig.row()
    assert (row["phase"], row["reason"]) == ("kept", "Abandoned")
    assert (row["message"], row["external_id"]) == ("credential revoked", resource)
    assert row["release_started_at"] is not None
    assert (row["released_at"], row["due_at"]) == (None, None)
    assert row["observed_generation"] == row["generation"]
    rig.clock.advance(90 * 86400)
    assert rig.claim() == []
    assert [row["phase"] for row in operator.status()] == ["kept"], "listed for ever"
    assert operator.status()[0]["settle"] is None
    assert rig.ready().tenancy.incarnation == 2
    assert rig.claim_one().step is Step.CREATE


def test_a_release_that_ends_after_it_was_given_up_changes_nothing_but_the_journal(
    rig, operator
) -> None:
    asked(rig)
    claim = rig.claim_one(grace=0.0)
    operator.abandon(claim.tenancy.id, ME)
    before = rig.row()
    assert before["lease_expires_at"] is None, "nobody calls for it any more"
    assert not rig.settle(claim, Phase.RELEASED, finished=True)
    assert rig.row() == before
    assert rig.journal()[-1]["outcome"] == "released"


def test_what_a_create_makes_after_its_row_was_given_up_is_listed_with_it(rig, operator) -> None:
    rig.ready()
    claim = rig.claim_one()
    rig.removing()
    operator.abandon(claim.tenancy.id, ME)
    assert not rig.settle(claim, Phase.READY, external_id="x1", finished=True)
    rig.clock.advance(60)
    assert rig.claim(grace=0.0) == []
    (row,) = operator.status()
    assert (row["phase"], row["external_id"]) == ("kept", "x1")


@pytest.mark.parametrize("reason", [None, "", "  "])
def test_nothing_is_abandoned_without_a_reason(rig, operator, reason) -> None:
    asked(rig)
    with pytest.raises(VerbRefused, match="say why"):
        operator.abandon(rig.row()["id"], By("ada", reason))


# -- pause and resume ------------------------------------------------------------------------------


def test_a_resumed_row_goes_on_at_once_where_it_was(rig, operator) -> None:
    backing_off(rig)
    row = rig.row()["id"]
    operator.pause_row(row, ME)
    with pytest.raises(VerbRefused, match="paused already"):
        operator.pause_row(row, ME)
    operator.resume_row(row, ME)
    claim = rig.claim_one()
    assert (claim.step, claim.attempts) == (Step.CREATE, 7), "its back-off grows on"


def test_a_resumed_row_with_nothing_to_do_has_nothing_to_do(rig, operator) -> None:
    rig.make_ready()
    operator.pause_row(rig.row()["id"], ME)
    operator.resume_row(rig.row()["id"], ME)
    assert rig.claim() == []
    assert rig.row()["due_at"] is None


@pytest.mark.parametrize("kind", ["acme", FLEET])
def test_a_paused_kind_or_fleet_claims_nothing_until_it_is_resumed(rig, operator, kind) -> None:
    rig.ready()
    operator.pause_kind(kind, ME)
    assert rig.claim() == []
    assert not rig.busy(within=10.0), "waiting for a person is being idle"
    with pytest.raises(VerbRefused, match="paused already"):
        operator.pause_kind(kind, ME)
    operator.resume_kind(kind, ME)
    with pytest.raises(VerbRefused, match="no operator's pause"):
        operator.resume_kind(kind, ME)
    assert rig.claim_one().step is Step.CREATE
    entries = [(e["action"], e["tenancy_id"], e["kind"], e["actor"]) for e in rig.journal()]
    assert entries == [
        ("operator: pause", None, kind, "ada"),
        ("operator: resume", None, kind, "ada"),
    ]


def test_a_pause_of_another_kind_holds_nothing(rig, operator) -> None:
    rig.ready()
    rig.ready(kind="other")
    operator.pause_kind("other", ME)
    assert len(rig.claim()) == 1


def test_a_kind_without_rows_is_not_paused(rig, operator) -> None:
    rig.ready()
    with pytest.raises(VerbRefused, match="of the kind 'acne'; there are rows of 'acme'"):
        operator.pause_kind("acne", ME)
    assert "acne" not in {row["kind"] for row in rig.rows(vendor)}


def test_a_pause_leaves_what_the_vendor_said_and_the_other_way_round(rig, operator) -> None:
    rig.ready()
    rig.work.pause("acme", 60.0, "RateLimited")
    operator.pause_kind("acme", ME)
    operator.resume_kind("acme", ME)
    (row,) = rig.rows(vendor)
    assert (row["paused"], row["paused_until"]) == (False, rig.after(60))
    operator.pause_kind("acme", ME)
    rig.work.pause("acme", 90.0, "RateLimited")
    assert rig.rows(vendor)[0]["paused"]


# -- approve ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("opened", ["breaker", "sweep_breaker"])
def test_an_approved_breaker_is_closed_and_the_other_as_it_was(rig, operator, opened) -> None:
    rig.ready()
    rig.work.pause("acme", 1.0, "RateLimited")
    with pytest.raises(VerbRefused, match="no breaker of it is open"):
        operator.approve("acme", ME)
    names = ("breaker", "sweep_breaker")
    (other,) = (name for name in names if name != opened)
    open_ = sa.update(vendor).values(
        {f"{opened}_opened_at": rig.clock.instant, f"{other}_approved_at": rig.clock.instant}
    )
    rig.work.writing(rig.soon(), lambda at: at.execute(open_).close())
    rig.clock.advance(5)
    operator.approve("acme", ME)
    (row,) = rig.rows(vendor)
    assert [row[f"{name}_opened_at"] for name in names] == [None, None]
    assert row[f"{opened}_approved_at"] == rig.clock.instant
    assert row[f"{other}_approved_at"] == rig.clock.instant - timedelta(seconds=5)
    assert rig.journal()[-1]["action"] == "operator: approve"
    with pytest.raises(VerbRefused, match="no breaker of it is open"):
        operator.approve("acme", ME)


# -- names -----------------------------------------------------------------------------------------


def named(rig, *workspaces: Workspace, kind: str = "acme") -> list[UUID]:
    return [rig.ready(workspace=workspace, kind=kind).tenancy.id for workspace in workspaces]


def test_a_row_is_named_by_its_id_its_workspace_or_both_its_names(rig, operator) -> None:
    a, b = named(rig, Workspace("ws", "t"), Workspace("a/b", "c/d"))
    assert [operator.find(name) for name in (str(a), "ws", "t/ws")] == [a, a, a]
    assert [operator.find(name) for name in ("a/b", "c/d/a/b")] == [b, b]
    assert operator.find("a/b", tenant="c/d") == b
    for name in ("w", "WS", "t/", "/ws", "ws/t", str(uuid4()), "", "%", "\ud800"):
        with pytest.raises(VerbRefused, match="no row is named"):
            operator.find(name)
    with pytest.raises(VerbRefused, match="no row is named"):
        operator.find("c/d/a/b", tenant="c/d")


def test_a_name_that_fits_several_rows_is_refused_with_their_ids(rig, operator) -> None:
    ids = named(rig, Workspace("b/c", "a"), Workspace("c", "a/b"), Workspace("a/b/c"))
    with pytest.raises(VerbRefused) as refused:
        operator.find("a/b/c")
    assert all(str(row) in str(refused.value) for row in ids)
    assert operator.find("c", tenant="a/b") == ids[1]
    assert operator.find("a/b/c", tenant="") == ids[2]


def test_a_kind_tells_rows_of_one_workspace_apart(rig, operator) -> None:
    (a,) = named(rig, Workspace("ws"))
    (b,) = named(rig, Workspace("ws"), kind="other")
    with pytest.raises(VerbRefused, match="several rows"):
        operator.find("ws")
    assert (operator.find("ws", kind="acme"), operator.find("ws", kind="other")) == (a, b)
    with pytest.raises(VerbRefused, match="no row is named"):
        operator.find(str(a), kind="other")


def test_a_refusal_does_not_name_a_thousand_rows(rig, operator) -> None:
    named(rig, *(Workspace("ws", f"tenant_{number}") for number in range(13)))
    with pytest.raises(VerbRefused, match="and 3 more") as refused:
        operator.find("ws")
    assert str(refused.value).count("tenant_") == 10


def test_the_live_life_is_meant_else_the_last_one(rig, operator) -> None:
    released(rig)
    first = rig.row()["id"]
    assert operator.find("ws_1") == first
    second = rig.ready().tenancy.id
    assert operator.find("ws_1") == second
    assert operator.find(str(first)) == first
    rig.removing()
    rig.claim()
    assert rig.rows()[1]["phase"] == "released", "never begun"
    assert operator.find("ws_1") == second


def test_a_row_that_no_host_asked_for_is_named_by_its_id_only(rig, operator) -> None:
    release_waits(rig)
    rig.change(origin="surplus")
    row = rig.row()["id"]
    assert operator.find(str(row)) == row
    with pytest.raises(VerbRefused, match="no row is named"):
        operator.find("ws_1")


def test_a_workspace_named_like_another_rows_id_does_not_stand_in_for_it(rig, operator) -> None:
    (a,) = named(rig, Workspace("ws"))
    (b,) = named(rig, Workspace(str(a)))
    assert operator.find(str(a)) == a
    assert operator.find(str(a), tenant="") == a
    assert operator.find(str(b)) == b


def test_forged_names_are_shown_as_what_they_are(rig, operator) -> None:
    named(rig, Workspace("ws\u202e", "a"), Workspace("ws\u202e", "b"))
    with pytest.raises(VerbRefused) as refused:
        operator.find("ws\u202e")
    assert "\u202e" not in str(refused.value)


# -- odd input -------------------------------------------------------------------------------------


def test_who_and_why_may_be_any_text(rig, operator) -> None:
    rig.ready()
    operator.release(rig.row()["id"], By("\ud800'; --", "\0" + "x" * 5000))
    entry = rig.journal()[-1]
    assert entry["actor"].startswith("\ufffd")
    assert entry["note"].startswith("\ufffd")


@pytest.mark.postgres
def test_a_verb_wakes_the_workers(postgres_rig, request) -> None:
    from nimble_lifecycle.store.wakeups import Listener

    postgres_rig.ready()
    heard = threading.Event()
    operator = OperatorStore(postgres_rig.url, clock=postgres_rig.clock)
    listener = Listener(postgres_rig.work, heard.set)
    listener.start()
    request.addfinalizer(operator.close)
    request.addfinalizer(listener.close)
    assert heard.wait(10), "it listens"
    heard.clear()
    operator.release(postgres_rig.row()["id"], ME)
    assert heard.wait(10)


def test_a_verb_is_one_statement_or_one_transaction(rig, operator) -> None:
    rig.ready()
    row = rig.row()["id"]
    operator.find(str(row))  # the first call of a store looks at the schema
    with statements_sent(operator) as statements:
        operator.release(row, ME)
    words = [each.text.split(maxsplit=1)[0] for each in statements]
    sent = [word for word in words if word not in ("PRAGMA", "--")]
    if rig.work.is_sqlite:
        assert sent == ["BEGIN", "SELECT", "WITH", "INSERT", "COMMIT"]
    else:
        assert sent == ["WITH", "SELECT"]
        assert "pg_notify" in statements[-1].text
