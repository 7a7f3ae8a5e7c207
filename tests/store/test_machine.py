"""Any sequence of host calls, claims, vendor calls, lost leases and late results, by Hypothesis.

The store and the outcome table without a worker's loop. The model is small: what each workspace
said last, and what there is at the vendor.
"""

from dataclasses import dataclass, field
from functools import partial

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)

from nimble_lifecycle.errors import Gone, TemporaryError, UnknownOutcome
from nimble_lifecycle.protocol import Phase, Why, Workspace
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.calls import Ended
from nimble_lifecycle.reconciler.outcome import settlement
from nimble_lifecycle.reconciler.settled import Policy
from nimble_lifecycle.reconciler.vendor import External, Provisioned, Released
from nimble_lifecycle.store import Claim, Step

LEASE = 30.0
WORKSPACES = ("a", "b")
ANSWERS = ("answered", "unknown", "not applied, unknown", "not applied")


@dataclass(frozen=True)
class Call:
    """A claim on its way to the vendor; what is sent by `until` may still land."""

    claim: Claim
    until: float


@dataclass(frozen=True)
class Result:
    claim: Claim
    ended: Ended


@dataclass
class Vendor:
    """What there is: the params of each resource, and whose mark it carries."""

    repeats: bool
    made: int = 0
    resources: dict[str, tuple[str, dict[str, object]]] = field(default_factory=dict)

    def does(self, claim: Claim) -> Ended:
        tenancy, params = claim.tenancy, dict(claim.tenancy.params)
        key, external_id = str(tenancy.idempotency_key), tenancy.external_id
        marked = next((name for name, (mark, _) in self.resources.items() if mark == key), None)
        match claim.step:
            case Step.CREATE if marked is not None and self.repeats:
                return Provisioned(marked)
            case Step.CREATE:
                self.made += 1
                self.resources[f"r{self.made}"] = (key, params)
                return Provisioned(f"r{self.made}")
            case Step.FIND:
                return None if marked is None else External(marked, key=key)
            case Step.UPDATE if external_id in self.resources:
                self.resources[external_id] = (key, params)
                return Provisioned(external_id)
            case Step.RELEASE if self.resources.pop(external_id or "", None) is not None:
                return Released()
        return Gone("nothing there")


class Machine(RuleBasedStateMachine):
    calls = Bundle("calls")
    results = Bundle("results")

    def __init__(self, rig) -> None:
        super().__init__()
        self.rig = rig
        self.rig.empty()
        self.said: dict[str, int | None] = {}
        self.now = 0.0

    @initialize(can_find=st.booleans(), repeats=st.booleans())
    def choose(self, can_find: bool, repeats: bool) -> None:
        self.vendor = Vendor(repeats)
        self.options = {"can_find": can_find, "repeatable": 1e7 if repeats else None}
        self.policy = Policy(
            Backoff(1.0, 600.0, lambda shortest, _longest: shortest),
            lag=0.0,
            can_find=can_find,
            repeatable=repeats,
            max_creates=5,
        )

    # -- what happens ----------------------------------------------------------------------------

    @rule(name=st.sampled_from(WORKSPACES), plan=st.integers(1, 2))
    def ready(self, name: str, plan: int) -> None:
        self.rig.ready({"plan": plan}, workspace=Workspace(name))
        self.said[name] = plan

    @rule(name=st.sampled_from(WORKSPACES))
    def removing(self, name: str) -> None:
        self.rig.removing(Workspace(name))
        self.said[name] = None

    @rule(seconds=st.sampled_from((1.0, 29.0, 31.0, 3601.0)))
    def time_passes(self, seconds: float) -> None:
        self.rig.clock.advance(seconds)
        self.now += seconds

    @rule(target=calls)
    def claim(self):
        claims = self.rig.claim(**self.options)
        return multiple(*(Call(claim, self.now + LEASE) for claim in claims))

    @rule(target=results, call=consumes(calls), answer=st.sampled_from(ANSWERS))
    def the_vendor_answers(self, call: Call, answer: str):
        if self.now > call.until:
            return multiple()  # whoever claimed it was killed, and nothing of it is under way
        ended = None if answer.startswith("not") else self.vendor.does(call.claim)
        if answer == "not applied":
            return Result(call.claim, TemporaryError("no"))
        return Result(call.claim, ended if answer == "answered" else UnknownOutcome("?"))

    @rule(result=results)
    def settle(self, result: Result) -> None:
        """Write it down, in time or late, and perhaps once more."""
        settled = settlement(result.claim, result.ended, self.policy)
        self.rig.work.settle([settled], actor="me")

    @rule()
    def mend(self) -> None:
        self.rig.work.mend("acme", keeps=False)

    # -- what is always true ---------------------------------------------------------------------

    @invariant()
    def the_last_intent_is_in_the_live_row(self) -> None:
        for name, plan in self.said.items():
            live = [row for row in self.rows(name) if row["release_started_at"] is None]
            assert len(live) <= 1
            desired = live[0]["desired"] if live else "release"
            assert desired == ("release" if plan is None else "wanted")
            assert plan is None or live[0]["params"] == {"plan": plan}

    @invariant()
    def nothing_is_doubled_and_what_is_ready_is_there(self) -> None:
        marks = [mark for mark, _ in self.vendor.resources.values()]
        assert len(marks) == len(set(marks))
        for row in self.rig.rows():
            if row["phase"] == Phase.READY and row["release_started_at"] is None:
                assert row["external_id"] in self.vendor.resources

    def rows(self, name: str):
        return [row for row in self.rig.rows() if row["workspace_id"] == name]

    # -- in the end ------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "vendor"):
            return
        for _ in range(12):
            self.time_passes(3601.0)
            self.mend()
            while claims := self.rig.claim(**self.options):
                for claim in claims:
                    self.settle(Result(claim, self.vendor.does(claim)))
        waiting = [row for row in self.rig.rows() if row["phase"] == Phase.STALLED]
        unsure = {Why.CREATE_OUTCOME_UNKNOWN, Why.QUARANTINED}
        assert {row["reason"] for row in waiting} <= unsure
        keys = {row["idempotency_key"] for row in waiting}
        for name, plan in self.said.items():
            if any(row["workspace_id"] == name for row in waiting):
                continue
            live = [row for row in self.rows(name) if row["released_at"] is None]
            wanted = [(Phase.READY, {"plan": plan})] if plan is not None else []
            assert [(row["phase"], row["params"]) for row in live] == wanted
        owned = {row["external_id"]: row for row in self.rig.rows() if row["released_at"] is None}
        for external_id, (mark, params) in self.vendor.resources.items():
            assert mark in keys or owned[external_id]["params"] == params


def test_any_sequence_ends_with_what_was_said_last(rig) -> None:
    run_state_machine_as_test(
        partial(Machine, rig),
        settings=settings(
            max_examples=60,
            stateful_step_count=25,
            deadline=None,
            derandomize=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
