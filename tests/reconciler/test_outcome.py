"""The outcome table: what each way a call can end means for its row."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_lifecycle.errors import (
    CredentialError,
    Gone,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
    UnknownOutcome,
)
from nimble_lifecycle.protocol import OPERATOR_ONLY, Phase, Tenancy, Why
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.calls import Ended, NoLookUpError, RefusedUnsentError, UnsentError
from nimble_lifecycle.reconciler.limits import Limits, policy_of
from nimble_lifecycle.reconciler.outcome import PROOF, behind, refused_to_all, settlement
from nimble_lifecycle.reconciler.settled import MAX_DETAILS, Policy, pause_of
from nimble_lifecycle.reconciler.vendor import External, InProgress, Provisioned, Released
from nimble_lifecycle.store import Claim, Step
from nimble_lifecycle.testing import MemoryVendor

KEY = "owner-row"
POLICY = Policy(Backoff(1.0, 600.0), lag=10.0, can_find=True, repeatable=True, max_creates=5)
BLIND = replace(POLICY, can_find=False, repeatable=False)

ENDS: dict[str, Ended] = {
    "provisioned": Provisioned("r1", {"a": 1}),
    "in progress": InProgress("op", poll_after=2.0, deadline=60.0),
    "released": Released(),
    "external": External("r1", key=KEY),
    "none": None,
    "temporary": TemporaryError("later"),
    "permanent": PermanentError("no", reason="QuotaReached"),
    "conflict": NameConflict("taken"),
    "gone": Gone("gone"),
    "unknown": UnknownOutcome("reset"),
    "credential": CredentialError("401"),
    "limited": RateLimited("429", after=120.0),
    "unavailable": Unavailable("refused"),
    "anything": KeyError("surprise"),
}
NOT_APPLIED = ("temporary", "credential", "limited", "unavailable")
UNKNOWN = ("released", "none", "gone", "unknown", "anything")

PHASES: dict[Step, dict[str, Phase]] = {
    Step.CREATE: {
        "provisioned": Phase.READY,
        "external": Phase.READY,
        "in progress": Phase.PROVISIONING,
        "permanent": Phase.STALLED,
        "conflict": Phase.STALLED,
        **dict.fromkeys(NOT_APPLIED, Phase.PENDING),
        **dict.fromkeys(UNKNOWN, Phase.UNRESOLVED),
    },
    Step.UPDATE: {**dict.fromkeys(ENDS, Phase.READY), "in progress": Phase.PROVISIONING},
    Step.FIND: {
        **dict.fromkeys(ENDS, Phase.UNRESOLVED),
        "external": Phase.READY,
        "in progress": Phase.PROVISIONING,
        "permanent": Phase.STALLED,
        "conflict": Phase.STALLED,
        "none": Phase.PENDING,
        "gone": Phase.PENDING,
    },
    Step.POLL: {
        **dict.fromkeys(ENDS, Phase.PROVISIONING),
        "provisioned": Phase.READY,
        "permanent": Phase.STALLED,
        "conflict": Phase.STALLED,
        "released": Phase.PENDING,
        "gone": Phase.UNRESOLVED,
    },
    Step.RELEASE: {
        **dict.fromkeys(ENDS, Phase.RELEASING),
        "released": Phase.RELEASED,
        "gone": Phase.RELEASED,
        "permanent": Phase.STALLED,
        "conflict": Phase.STALLED,
    },
}
CASES = [(step, end, phase) for step, ends in PHASES.items() for end, phase in ends.items()]


def claim_of(step: Step, **changes: object) -> Claim:
    tenancy = Tenancy(
        id=uuid4(),
        tenant_id="",
        workspace_id="ws",
        kind="k",
        incarnation=1,
        phase=Phase.RELEASING if step is Step.RELEASE else Phase.PROVISIONING,
        idempotency_key=KEY,
        operation_id="op" if step is Step.POLL else None,
        external_id="r1" if step in (Step.UPDATE, Step.RELEASE) else None,
        first_seen_at=datetime(2030, 1, 1, tzinfo=UTC),
    )
    names = Tenancy.__dataclass_fields__
    tenancy = replace(tenancy, **{k: v for k, v in changes.items() if k in names})
    claim = Claim(
        tenancy=tenancy,
        step=step,
        reason=tenancy.reason,
        token=7,
        generation=3,
        attempts=2,
        creates=1,
        first_create=False,
        reclaims=0,
        releasing=step is Step.RELEASE,
        create_ends_in=-970.0,
        overdue=False,
        readable=True,
        remembered=False,
    )
    return replace(claim, **{k: v for k, v in changes.items() if k not in names})


@pytest.mark.parametrize(("step", "end", "phase"), CASES)
def test_each_end_of_each_step_has_its_phase(step: Step, end: str, phase: Phase) -> None:
    settled = settlement(claim_of(step), ENDS[end], POLICY)
    assert settled.phase is phase
    assert (settled.token, settled.generation, settled.action) == (7, 3, step.value)


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("first_create", [True, False])
def test_only_a_look_up_proves_that_nothing_is_there(
    step: Step, end: str, first_create: bool
) -> None:
    settled = settlement(claim_of(step, first_create=first_create), ENDS[end], POLICY)
    proof = step is Step.FIND and end in ("none", "gone", "conflict")
    assert settled.nothing_there == proof


def test_a_look_up_that_comes_too_early_proves_nothing() -> None:
    early = claim_of(Step.FIND, create_ends_in=-1.0, releasing=True)
    assert not settlement(early, None, replace(POLICY, lag=1.5)).nothing_there
    assert settlement(early, None, replace(POLICY, lag=0.5)).nothing_there


@pytest.mark.parametrize("step", Step)
@pytest.mark.parametrize("end", ENDS)
def test_how_long_a_step_took_is_told_however_it_ended(step: Step, end: str) -> None:
    assert settlement(claim_of(step), ENDS[end], POLICY, seconds=1.5).seconds == 1.5


def test_what_no_vendor_was_asked_ends_like_a_look_up_and_proves_no_credential() -> None:
    claim = replace(claim_of(Step.FIND, create_ends_in=-11.0, releasing=True), attempts=0)
    asked = settlement(claim, None, POLICY)
    refused = settlement(claim, RefusedUnsentError("no identity", reason="InvalidIdentity"), POLICY)
    assert refused == replace(asked, outcome="never sent")
    assert asked.nothing_there
    assert asked.outcome in PROOF
    assert refused.outcome not in PROOF


@pytest.mark.parametrize("error", [UnsentError("late"), RefusedUnsentError("no")])
def test_a_create_that_was_never_sent_left_nothing_if_it_was_the_first(error: Exception) -> None:
    first = claim_of(Step.CREATE, first_create=True)
    assert settlement(first, error, POLICY).nothing_there
    assert not settlement(replace(first, first_create=False), error, POLICY).nothing_there


@pytest.mark.parametrize(
    ("reason", "phase"),
    [
        (None, Phase.PENDING),
        (Why.BACKING_OFF, Phase.PENDING),
        (Why.WAITING_FOR_PREDECESSOR, Phase.PENDING),
        (Why.NAME_CONFLICT, Phase.STALLED),
        ("QuotaExceeded", Phase.STALLED),
    ],
)
def test_a_row_looked_up_for_its_release_is_put_back_where_there_is_nothing(
    reason: str | None, phase: Phase
) -> None:
    shown = {"reason": Why.STILL_IN_USE, "message": "m"}  # use holds its release
    claim = replace(claim_of(Step.FIND, releasing=True, **shown), reason=reason)
    settled = settlement(claim, None, POLICY)
    assert (settled.phase, settled.reason, settled.message) == (phase, reason, "m")
    assert (settled.attempts, settled.nothing_there) == (2, True)
    assert (settled.delay or 0.0) > 0.5 if phase is Phase.PENDING else settled.delay is None


@pytest.mark.parametrize(("step", "end", "phase"), CASES)
def test_a_row_is_due_again_unless_it_is_done_or_stalled(
    step: Step, end: str, phase: Phase
) -> None:
    settled = settlement(claim_of(step), ENDS[end], POLICY)
    refused_update = step is Step.UPDATE and end in ("permanent", "conflict")
    rests = settled.finished or phase in (Phase.STALLED, Phase.RELEASED) or refused_update
    assert (settled.delay is None) == rests
    assert settled.finished == (settled.reason is None and rests)


@pytest.mark.parametrize("end", UNKNOWN)
def test_an_unknown_create_is_stalled_where_nothing_can_settle_it(end: str) -> None:
    settled = settlement(claim_of(Step.CREATE), ENDS[end], BLIND)
    assert (settled.phase, settled.reason) == (Phase.STALLED, Why.CREATE_OUTCOME_UNKNOWN)


@given(
    end=st.sampled_from(UNKNOWN),
    creates=st.integers(1, 9),
    can_find=st.booleans(),
    repeatable=st.booleans(),
    attempts=st.integers(0, 50),
)
def test_an_unknown_create_is_never_pending_and_never_uncounted(
    end: str, creates: int, can_find: bool, repeatable: bool, attempts: int
) -> None:
    policy = replace(POLICY, can_find=can_find, repeatable=repeatable)
    claim = claim_of(Step.CREATE, creates=creates, attempts=attempts)
    settled = settlement(claim, ENDS[end], policy)
    assert settled.phase in (Phase.UNRESOLVED, Phase.STALLED)
    assert settled.creates == creates


@given(
    step=st.sampled_from(Step),
    end=st.sampled_from(sorted(ENDS)),
    phase=st.sampled_from([Phase.PROVISIONING, Phase.RELEASING, Phase.RELEASE_PENDING]),
    overdue=st.booleans(),
)
def test_only_released_or_gone_ends_in_released(
    step: Step, end: str, phase: Phase, overdue: bool
) -> None:
    settled = settlement(claim_of(step, phase=phase, overdue=overdue), ENDS[end], POLICY)
    if settled.phase is Phase.RELEASED:
        assert end in ("released", "gone")
        assert step is Step.RELEASE or phase is Phase.RELEASING


@pytest.mark.parametrize("end", [*NOT_APPLIED, "permanent", "conflict"])
def test_a_repeated_create_that_was_not_applied_leaves_the_first_one_unresolved(end: str) -> None:
    settled = settlement(claim_of(Step.CREATE, creates=2), ENDS[end], POLICY)
    assert (settled.phase, settled.creates) == (Phase.UNRESOLVED, 1)
    first = settlement(claim_of(Step.CREATE, creates=1), ENDS[end], POLICY)
    assert first.creates == 0


@pytest.mark.parametrize(
    ("ends_in", "phase", "delay"),
    [(30.0, "unresolved", 40.0), (-9.0, "unresolved", 1.0), (-10.0, "pending", 0.0)],
)
def test_not_found_is_believed_only_after_lease_and_lag(
    ends_in: float, phase: str, delay: float
) -> None:
    settled = settlement(claim_of(Step.FIND, create_ends_in=ends_in), None, POLICY)
    assert (settled.phase, settled.delay, settled.creates) == (phase, delay, 1)


def test_a_look_up_that_finds_nothing_lets_a_remembered_key_be_repeated_at_once() -> None:
    early = claim_of(Step.FIND, create_ends_in=29.0, remembered=True)
    settled = settlement(early, None, POLICY)
    assert (settled.phase, settled.delay) == (Phase.PROVISIONING, 0.0)
    for changes in ({"remembered": False}, {"releasing": True}, {"creates": 5}):
        kept = settlement(replace(early, **changes), None, POLICY)
        assert (kept.phase, kept.delay) == (Phase.UNRESOLVED, 39.0)


@pytest.mark.parametrize(("creates", "counted"), [(1, 1), (2, 1), (5, 4)])
def test_creates_under_a_remembered_key_count_as_one(creates: int, counted: int) -> None:
    claim = claim_of(Step.CREATE, creates=creates, remembered=True)
    assert settlement(claim, UnknownOutcome("lost"), POLICY).creates == counted


@pytest.mark.parametrize(
    ("end", "reason"), [("permanent", "QuotaReached"), ("conflict", Why.NAME_CONFLICT)]
)
def test_a_refused_create_stalls_once_none_before_it_is_found(end: str, reason: str) -> None:
    refused = settlement(claim_of(Step.CREATE, creates=2), ENDS[end], POLICY)
    assert refused.reason == reason
    words = {"reason": refused.reason, "message": refused.message}
    early = settlement(claim_of(Step.FIND, create_ends_in=29.0, **words), None, POLICY)
    assert (early.phase, early.reason) == (Phase.UNRESOLVED, reason)
    late = settlement(claim_of(Step.FIND, **words), None, POLICY)
    assert (late.phase, late.reason, late.message) == (Phase.STALLED, reason, refused.message)


@pytest.mark.parametrize(
    "found",
    [External("r", key="other-row"), External("r", owner="other"), External("r", KEY, owner="x")],
)
@pytest.mark.parametrize("step", [Step.FIND, Step.CREATE])
def test_what_carries_another_mark_is_never_adopted(step: Step, found: External) -> None:
    settled = settlement(claim_of(step), found, POLICY)
    assert (settled.phase, settled.reason) == (Phase.STALLED, Why.NAME_CONFLICT)
    assert settled.external_id is None


@pytest.mark.parametrize("end", ["in progress", "temporary", "anything", "none"])
def test_an_overdue_create_is_unknown_and_an_overdue_release_stalled(end: str) -> None:
    created = settlement(claim_of(Step.POLL, overdue=True), ENDS[end], POLICY)
    assert (created.phase, created.operation_id) == (Phase.UNRESOLVED, None)
    releasing = claim_of(Step.POLL, overdue=True, phase=Phase.RELEASING, external_id="r1")
    released = settlement(releasing, ENDS[end], POLICY)
    assert (released.phase, released.reason) == (Phase.STALLED, Why.OPERATION_OVERDUE)


def test_an_operation_that_never_ends_gets_no_second_deadline() -> None:
    overdue = settlement(claim_of(Step.POLL, overdue=True), ENDS["in progress"], POLICY)
    assert overdue.reason == Why.OPERATION_OVERDUE
    looked = claim_of(Step.FIND, phase=Phase.UNRESOLVED, reason=overdue.reason)
    settled = settlement(looked, ENDS["in progress"], POLICY)
    assert (settled.phase, settled.reason) == (Phase.UNRESOLVED, Why.OPERATION_OVERDUE)
    assert (settled.operation_id, settled.operation_limit) == (None, None)
    assert settled.delay is not None
    assert settlement(looked, None, POLICY).phase is Phase.PENDING, "it may end without a resource"


def test_an_update_that_answers_with_another_resource_touches_neither() -> None:
    settled = settlement(claim_of(Step.UPDATE), Provisioned("r2"), POLICY)
    assert (settled.phase, settled.reason, settled.external_id) == (Phase.READY, "Rejected", None)
    assert "another resource" in (settled.message or "")


def test_a_create_that_ends_beside_a_rescued_resource_names_what_it_made() -> None:
    claim = claim_of(Step.POLL, external_id="r1", creates=1)
    settled = settlement(claim, Provisioned("r2"), POLICY)
    assert (settled.phase, settled.external_id) == (Phase.READY, "r2")


@pytest.mark.parametrize("end", ["limited", "unavailable", "credential"])
def test_an_overdue_operation_is_kept_while_the_vendor_does_not_answer(end: str) -> None:
    settled = settlement(claim_of(Step.POLL, overdue=True), ENDS[end], POLICY)
    assert (settled.phase, settled.operation_id) == (Phase.PROVISIONING, "op")


def test_a_forgotten_operation_of_a_release_proves_nothing_gone() -> None:
    claim = claim_of(Step.POLL, phase=Phase.RELEASING, external_id="r1")
    settled = settlement(claim, Gone("no such operation"), POLICY)
    assert (settled.phase, settled.operation_id) == (Phase.RELEASING, None)


@pytest.mark.parametrize("end", sorted(set(ENDS) - {"provisioned", "in progress"}))
def test_the_resource_of_an_update_that_failed_stays_ready(end: str) -> None:
    polled = claim_of(Step.POLL, external_id="r1", overdue=True)
    for claim in (claim_of(Step.UPDATE), polled):
        settled = settlement(claim, ENDS[end], POLICY)
        assert not settled.finished
        assert settled.phase is Phase.READY or settled.operation_id == "op"


@pytest.mark.parametrize("end", ["limited", "unavailable"])
@pytest.mark.parametrize("step", list(Step))
def test_an_error_of_the_whole_vendor_leaves_attempts_unchanged(step: Step, end: str) -> None:
    settled = settlement(claim_of(step), ENDS[end], POLICY)
    assert settled.attempts == 2
    assert pause_of(ENDS[end]) is not None
    assert settled.delay is not None
    assert POLICY.backoff.first <= settled.delay <= 2 * POLICY.backoff.first, "the kind is paused"


NAMING = (Step.CREATE, Step.FIND, Step.POLL)
"""Steps that a taken name is an answer to."""


@pytest.mark.parametrize("end", [None, *ENDS])
@pytest.mark.parametrize("step", list(Step))
def test_only_what_the_vendor_answered_proves_the_credential(step: Step, end: str | None) -> None:
    ended = None if end is None else ENDS[end]
    proven = settlement(claim_of(step), ended, POLICY).outcome in PROOF
    if isinstance(ended, Exception):
        assert proven == (
            (isinstance(ended, Gone) and step in (Step.FIND, Step.RELEASE))
            or (isinstance(ended, NameConflict) and step in NAMING)
        )
    elif isinstance(ended, (Provisioned, InProgress)) and step in (Step.CREATE, Step.UPDATE):
        assert proven


@pytest.mark.parametrize("step", list(Step))
def test_a_credential_refused_to_all_rows_is_no_rows_attempt(step: Step) -> None:
    claim = claim_of(step)
    alone = settlement(claim, CredentialError("401"), POLICY)
    assert (alone.reason, alone.attempts) == ("PermissionDenied", 3)
    to_all = refused_to_all(alone, claim, POLICY)
    assert (to_all.reason, to_all.attempts, to_all.phase) == ("CredentialRefused", 2, alone.phase)
    assert to_all.delay is not None
    assert to_all.delay <= 2 * POLICY.backoff.first


def test_a_look_up_that_finds_nothing_after_a_refused_credential_lets_the_create_go_on() -> None:
    claim = claim_of(Step.FIND, reason="CredentialRefused")
    assert settlement(claim, None, POLICY).phase is Phase.PENDING


@pytest.mark.parametrize(
    ("after", "seconds"),
    [
        (120.0, 120.0),
        (None, 5.0),
        (1e9, 3600.0),
        (float("inf"), 3600.0),
        (float("nan"), 5.0),
        (-1.0, 5.0),
        (10**400, 5.0),
        (True, 5.0),
    ],
)
def test_a_pause_is_bounded(after: float | None, seconds: float) -> None:
    assert pause_of(RateLimited(after=after)) == (seconds, Why.RATE_LIMITED)


@pytest.mark.parametrize(
    ("delay", "low", "high"),
    [
        (7.0, 7, 7),
        (0.0, 1, 1),
        (1e12, 86400, 86400),
        # not given: the row's own back-off
        (-5.0, 1, 600),
        (10**400, 1, 600),
        (float("nan"), 1, 600),
    ],
)
def test_a_delay_the_adapter_asks_for_is_bounded(delay: float, low: float, high: float) -> None:
    settled = settlement(claim_of(Step.CREATE), TemporaryError(delay=delay), POLICY)
    assert settled.delay is not None
    assert low <= settled.delay <= high


@pytest.mark.parametrize(
    ("poll_after", "deadline", "expected"),
    [
        (2.0, 60.0, (2.0, 60.0)),
        (float("nan"), None, (1.0, 3600.0)),
        (-1.0, float("inf"), (1.0, 366 * 86400.0)),
        (0.0, -1.0, (1.0, 3600.0)),
    ],
)
def test_times_of_an_operation_are_bounded(
    poll_after: float, deadline: float | None, expected: tuple[float, float]
) -> None:
    settled = settlement(claim_of(Step.CREATE), InProgress("op", poll_after, deadline), POLICY)
    assert (settled.delay, settled.operation_limit) == expected


def nested(levels: int) -> dict[str, object]:
    """Make details of so many levels."""
    inner: object = "x"
    for _ in range(levels - 2):
        inner = [inner]
    return {"a": inner}


def test_details_a_hundred_levels_deep_are_kept() -> None:
    settled = settlement(claim_of(Step.CREATE), Provisioned("r1", nested(100)), POLICY)  # type: ignore[arg-type]
    assert (settled.details, settled.message) == (nested(100), None)


@pytest.mark.parametrize(
    ("details", "word"),
    [
        ({"a": "x" * MAX_DETAILS}, "bytes"),
        ({"a": object()}, "JSON"),
        ({"a": float("nan")}, "JSON"),
        ({"a": "\ud800"}, "JSON"),
        ({"a": "\0"}, "JSON"),
        ([1, 2], "JSON"),
        (nested(101), "deep"),
        (nested(5000), "JSON"),
    ],
)
def test_details_that_cannot_be_stored_are_dropped_with_a_message(
    details: object, word: str
) -> None:
    made = Provisioned("r1", details)  # type: ignore[arg-type]  # what an adapter may do wrong
    settled = settlement(claim_of(Step.CREATE), made, POLICY)
    assert (settled.phase, settled.external_id, settled.details) == (Phase.READY, "r1", None)
    assert settled.message is not None
    assert word in settled.message


def test_success_resets_what_failures_counted() -> None:
    settled = settlement(claim_of(Step.CREATE, attempts=9, creates=4), ENDS["provisioned"], POLICY)
    assert (settled.attempts, settled.creates, settled.error) == (0, 0, None)
    assert settled.details == {"a": 1}


def test_back_off_grows_to_its_limit_and_is_spread() -> None:
    backoff = Backoff(1.0, 600.0)
    assert all(1.0 <= backoff.delay(1) <= 2.0 for _ in range(50))
    for attempts in (5, 20, 10_000):
        delays = [backoff.delay(attempts) for _ in range(50)]
        assert max(delays) <= 600.0
        assert len(set(delays)) > 40
    assert max(backoff.delay(12) for _ in range(50)) > 300.0


def test_a_row_behind_its_predecessor_backs_off() -> None:
    claim = claim_of(Step.CREATE, attempts=4)
    waits = behind(settlement(claim, ENDS["conflict"], POLICY), claim, POLICY)
    assert (waits.phase, waits.reason) == (Phase.PENDING, Why.WAITING_FOR_PREDECESSOR)
    assert waits.attempts == 5
    assert waits.delay is not None
    assert waits.delay >= POLICY.backoff.first


@pytest.mark.parametrize("step", [Step.CREATE, Step.UPDATE, Step.RELEASE])
@pytest.mark.parametrize("reason", [None, 5, b"No", "", " \n", "x" * 10_000])
def test_a_reason_that_is_no_word_counts_as_not_given(step: Step, reason: object) -> None:
    error = PermanentError("no", reason=reason)  # type: ignore[arg-type]  # an adapter's mistake
    assert settlement(claim_of(step), error, POLICY).reason == "Rejected"


@pytest.mark.parametrize("reason", OPERATOR_ONLY)
def test_an_adapter_cannot_leave_a_row_to_a_person_whom_only_the_worker_asks(reason: Why) -> None:
    error = PermanentError("no", reason=reason)
    assert settlement(claim_of(Step.CREATE), error, POLICY).reason == "Rejected"


class Forgetful:
    """An error whose class does not call `super().__init__`."""

    def __init__(self, *_given: object) -> None:
        Exception.__init__(self, "odd")


class Broken(Forgetful):
    """An error of which nothing can be read."""

    def _raises(self) -> object:
        raise ValueError("broken")

    delay = after = reason = property(_raises)

    def __str__(self) -> str:
        raise RuntimeError


ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.floats(),
    st.integers(),
    st.sampled_from([10**400, -(10**400), object(), float, {}, "x" * 100_000]),
    st.text(),
    st.binary(),
)
KINDS = (PermanentError, TemporaryError, RateLimited, Unavailable, NameConflict, Gone)


def odd_error(kind: type[Exception], mixin: type | None, given: object) -> Exception:
    if mixin is not None:
        return type(kind.__name__, (mixin, kind), {})("said")
    error = kind("said")
    for name in ("reason", "delay", "after"):
        setattr(error, name, given)
    return error


@given(
    step=st.sampled_from(Step),
    kind=st.sampled_from(KINDS),
    mixin=st.sampled_from([None, Forgetful, Broken]),
    odd=ODD,
    creates=st.integers(1, 3),
)
def test_an_odd_error_is_settled_like_any_of_its_kind(
    step: Step, kind: type[Exception], mixin: type | None, odd: object, creates: int
) -> None:
    claim = claim_of(step, creates=creates)
    settled = settlement(claim, odd_error(kind, mixin, odd), POLICY)
    plain = settlement(claim, kind("said"), POLICY)
    assert settled.phase is plain.phase
    assert (settled.delay is None) == (plain.delay is None)
    assert settled.delay is None or 0 <= settled.delay <= 86400
    assert settled.reason is None or 0 < len(settled.reason) <= 64


@given(step=st.sampled_from(Step), first=ODD, second=ODD, details=ODD)
def test_odd_values_never_raise(step: Step, first: object, second: object, details: object) -> None:
    working = InProgress("op", first, second)  # type: ignore[arg-type]
    made = Provisioned("r1", details)  # type: ignore[arg-type]
    found = External("r1", key=first, owner=second, details=details)  # type: ignore[arg-type]
    for ended in (working, made, found):
        assert settlement(claim_of(step), ended, POLICY).action == step.value


def test_without_a_look_up_the_row_keeps_what_its_create_met() -> None:
    ended = NoLookUpError("the adapter has no look-up", reason=Why.CREATE_OUTCOME_UNKNOWN)
    settled = settlement(claim_of(Step.FIND), ended, BLIND)
    assert (settled.phase, settled.reason) == (Phase.STALLED, Why.CREATE_OUTCOME_UNKNOWN)
    assert settled.error is None


@pytest.mark.parametrize(("seconds", "counted"), [(30, False), (31, True)])
def test_a_key_that_is_forgotten_within_a_lease_is_not_counted_on(seconds, counted) -> None:
    vendor = MemoryVendor()
    vendor.repeatable = timedelta(seconds=seconds)  # a lease is three times the ten seconds
    assert policy_of(vendor, Limits()).repeatable is counted
