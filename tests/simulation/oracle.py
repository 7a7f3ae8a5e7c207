"""What must be true of the world: at the instant things happen at the vendor, and in the end."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

import sqlalchemy as sa

from nimble_lifecycle.protocol import Event, Phase, Tenancy, Why
from nimble_lifecycle.store import WorkStore
from nimble_lifecycle.store.models import journal
from nimble_lifecycle.store.models import tenancy as t
from tests.simulation.loop import START, Loop
from tests.simulation.scenario import Scenario
from tests.simulation.site import Resource, Site
from tests.simulation.stores import Stores

ANY_PLAN = "*"
"""The plan of an operator's word, which leaves params as they are."""

MAX_CREATES = 5
"""Creates a row may begin without a certain outcome."""

TIME_TO_WRITE = 200.0
"""Seconds a worker has to write down what it was told, whatever holds it up."""

QUARANTINE = 3
"""Reclaims after which a row is quarantined."""

CALL_LIMIT = 3.0
"""Seconds a server may work on a host's call."""


@dataclass(slots=True)
class HostCall:
    """What a host said. `ended` is when nothing of it can be applied any more."""

    workspace_id: str
    event: Event
    plan: str
    sent: float
    ended: float = float("inf")
    recorded: bool = False
    by_operator: bool = False


@dataclass(frozen=True, slots=True)
class Act:
    """A vendor call under a claim: its fencing token, and until when the claim holds."""

    token: int
    until: datetime
    call: "asyncio.Future[Any]"
    ends: float
    """When whoever called gives up."""


@dataclass
class Oracle:
    """Watches the vendor, remembers what hosts said, and judges."""

    loop: Loop
    scenario: Scenario
    stores: Stores
    figures: "Counter[str]"
    wrong: list[str] = field(default_factory=list)
    calls: dict[str, list[HostCall]] = field(default_factory=lambda: defaultdict(list))
    site: Site = field(init=False)
    list_not_believed: bool = False
    """Whether a sweep took the vendor's list for too short to be true."""
    _seen: dict[UUID, sa.RowMapping] = field(default_factory=dict)
    _acts: dict[UUID, "Act"] = field(default_factory=dict)
    """What was last done for each row."""
    _due: dict[UUID, datetime] = field(default_factory=dict)
    _stalled: dict[UUID, tuple[datetime, sa.RowMapping]] = field(default_factory=dict)
    """When each row that is stalled came to be so, and how it was then."""

    def rows(self) -> list[sa.RowMapping]:
        """Give every row as it is stored."""
        order = (t.c.workspace_id, t.c.incarnation)
        return self._read(sa.select(t).order_by(*order))

    def _read(self, statement: sa.Select[Any]) -> list[sa.RowMapping]:
        store = self.stores.observer
        until = store.clock.monotonic() + 30.0
        # Not over the wire, whoever's thread this is.
        return WorkStore.reading(store, until, lambda at: list(at.execute(statement).mappings()))

    def object(self, kind: str, what: str) -> None:
        """Say that something is wrong."""
        self.figures[kind] += 1
        self.wrong.append(f"{self.loop.time():.3f} {kind}: {what}")

    # -- in the database, when it happens --------------------------------------------------------

    def wrote(self) -> None:
        """Status goes forward only: what a worker writes after it lost a row changes nothing."""
        for row in self.rows():
            before = self._seen.get(row["id"])
            self._seen[row["id"]] = row
            self._keep_stalled(row)
            if before is None:
                continue
            forgot = before["external_id"] not in (None, row["external_id"])
            other = before["idempotency_key"] not in (None, row["idempotency_key"])
            older = row["observed_generation"] < before["observed_generation"]
            if _went_back(before, row) or forgot or other or older:
                name = f"{row['workspace_id']}#{row['incarnation']}"
                self.object("undone", f"{name} was {before['phase']} and is {row['phase']}")

    def _keep_stalled(self, row: sa.RowMapping) -> None:
        _, then = self._stalled.get(row["id"], (None, None))
        if row["phase"] != Phase.STALLED:
            self._stalled.pop(row["id"], None)
        elif then is None or then["reason"] != row["reason"]:
            self._stalled[row["id"]] = self.loop.instant, row

    def newly_due(self) -> list[datetime]:
        """Give the instants at which rows are to be looked at, as far as they are new."""
        due = {
            id_: row["lease_expires_at"] or row["due_at"]
            for id_, row in self._seen.items()
            if row["due_at"] is not None
        }
        new = [at for id_, at in due.items() if self._due.get(id_) != at]
        self._due = due
        return new

    def asked(self, owner: str, tenancy: Tenancy, call: "asyncio.Future[Any]") -> None:
        """One at a time: a row is acted for by whoever has its lease, until it is over."""
        columns = (t.c.lease_token, t.c.lease_owner, t.c.lease_expires_at, t.c.paused)
        (row,) = self._read(sa.select(*columns).where(t.c.id == tenancy.id))
        if row["lease_owner"] != owner:
            return  # whoever lost its row and does not know it yet
        if row["paused"]:
            self.object("called though paused", tenancy.workspace_id)
        before, ends = (
            self._acts.get(tenancy.id),
            self.loop.time() + self.scenario.traits.time_limit,
        )
        self._acts[tenancy.id] = Act(row["lease_token"], row["lease_expires_at"], call, ends)
        if before is None or before.token == row["lease_token"]:
            return
        if self.loop.instant < before.until and not self._is_over(tenancy, before):
            words = f"{tenancy.workspace_id}: {owner} did not wait for the lease"
            self.object("two at once", words)

    def _is_over(self, tenancy: Tenancy, act: Act) -> bool:
        """Whether it was settled, and not by somebody else while it was still going on."""
        if not act.call.done() and self.loop.time() < act.ends:
            return False
        settled = sa.select(journal.c.id).where(
            journal.c.tenancy_id == tenancy.id, journal.c.lease_token == act.token
        )
        return bool(self._read(settled))

    # -- at the vendor, when it happens ----------------------------------------------------------

    def about_to_create(self, tenancy: Tenancy) -> None:
        """Rule 1: key and intention are committed before a create can reach the vendor."""
        rows = self._read(sa.select(t).where(t.c.id == tenancy.id))
        if len(rows) != 1 or rows[0]["idempotency_key"] != tenancy.idempotency_key:
            self.object("no write-ahead", f"a create under {tenancy.idempotency_key}")
        elif rows[0]["create_attempted_at"] is None:
            self.object("no write-ahead", f"{tenancy.workspace_id} has no attempt on record")

    def created(self, resource: Resource) -> None:
        """One key, one resource, but for creates that come after all time."""
        self.figures["created"] += 1
        same = [other for other in self.site.ours() if other.key == resource.key]
        if len(same) > 1:
            if resource.key in self.site.overtaken:
                self.figures["surplus made by late creates"] += 1
            else:
                ids = ", ".join(each.external_id for each in same)
                self.object("doubled", f"{resource.workspace_id} has {ids}")

    def released(self, resource: Resource) -> None:
        """Only what is ours, asked to be released, and after its grace."""
        self.figures["released"] += 1
        if resource.key is None:
            self.object("foreign touched", resource.external_id)
            return
        rows = self._read(
            sa.select(t).where(
                t.c.external_id == resource.external_id, t.c.release_started_at.is_not(None)
            )
        )
        if not rows:
            self.object("lost", f"{resource.external_id} of {resource.workspace_id}, not asked for")
            return
        row, grace = rows[0], timedelta(seconds=self.scenario.grace, milliseconds=-2)
        if row["origin"] is not None:
            return  # of no tenancy's own
        started = row["release_started_at"]
        held = max(row["release_seen_at"], row["last_used_at"] or row["release_seen_at"])
        if started < held + grace or not self._asked_in_time(row):
            self.object("lost", f"{resource.external_id} of {resource.workspace_id}: no grace")

    def _asked_in_time(self, row: sa.RowMapping) -> bool:
        """Whether somebody asked a grace ago, and nobody took it back before the release began."""
        begun = (row["release_started_at"] - START).total_seconds()
        held = row["hold"] is not None
        calls = [c for c in self.calls[row["workspace_id"]] if c.by_operator or not held]
        renewed = [c for c in calls if c.event is Event.READY and c.recorded and c.ended <= begun]
        since = max((call.sent for call in renewed), default=0.0)
        latest = begun - self.scenario.grace + 0.01
        every = self.calls[row["workspace_id"]]  # an operator's release keeps the grace of a host's
        asked = [c for c in every if c.event is Event.REMOVING and c.sent <= latest]
        return any(call.ended >= since for call in asked)

    # -- a person --------------------------------------------------------------------------------

    def needs_person(self, row: Mapping[str, Any]) -> None:
        """Judge whether a row that `status` lists with a command had to come to that."""
        self.figures["settled by a person"] += 1
        if not self._may_wait_for_person(row):
            words = f"{row['workspace_id']}: {row['reason']}, {row['last_error']}"
            self.object("waits for a person", words)

    def _may_wait_for_person(self, row: Mapping[str, Any]) -> bool:
        traits, site = self.scenario.traits, self.site
        worker, told_at = site.told.get(row["idempotency_key"], (None, 0.0))
        if (
            worker is not None
            and worker.died_at > told_at + TIME_TO_WRITE
            and not row["external_id"]
        ):
            return False
        refused = row["idempotency_key"] in site.refused_for_good
        match row["reason"]:
            case Why.CREATE_OUTCOME_UNKNOWN:
                spent = row["creates"] >= MAX_CREATES
                return self._forgotten(row) or refused or spent or self._has_foreign_name(row)
            case Why.NAME_CONFLICT:
                return self._has_foreign_name(row)
            case Why.REJECTED:
                return refused
            case Why.OPERATION_OVERDUE:
                return traits.deadline is not None
            case Why.QUARANTINED:
                _, then = self._stalled[UUID(str(row["id"]))]
                return bool(then["reclaims"] >= QUARANTINE)
            case Why.PAUSED:
                return self.scenario.meddling > 0
            case Why.RELEASE_BREAKER_OPEN:
                return self.scenario.release_least < 10
        return False

    def _forgotten(self, row: Mapping[str, Any]) -> bool:
        """Whether the vendor could no longer be asked by the time the row was given up."""
        traits = self.scenario.traits
        if traits.can_find or traits.repeatable is None:
            return not traits.can_find
        given_up, then = self._stalled[UUID(str(row["id"]))]
        usable = timedelta(seconds=traits.repeatable - self.scenario.lease)
        return bool(given_up >= then["create_started_at"] + usable)

    def _has_foreign_name(self, row: Mapping[str, Any]) -> bool:
        gone = (None, *self.abandoned())
        taken = (other.name for other in self.site.resources.values() if other.key in gone)
        return self.scenario.traits.unique_names and row["workspace_id"] in taken

    def abandoned(self) -> list[str]:
        """Give the keys of what an operator gave up, and of lives whose resource vanished.

        Another resource of such a life, which nobody knows, is for a sweep to find; and so is what
        landed, after all that is assumed of the network, when its life was over.
        """
        overtaken = sa.and_(
            t.c.released_at.is_not(None), t.c.idempotency_key.in_(self.site.overtaken)
        )
        kept = sa.select(t.c.idempotency_key).where(
            sa.or_(t.c.phase == Phase.KEPT, t.c.retired_at.is_not(None), overtaken),
            t.c.idempotency_key.is_not(None),
        )
        return [row["idempotency_key"] for row in self._read(kept)]

    # -- in the end ------------------------------------------------------------------------------

    def judge(self) -> None:
        """Compare what hosts said, what the rows say, and what there is."""
        rows = self.rows()
        self.figures["tenancies"] += len(rows)
        by_workspace = defaultdict(list)
        for row in rows:
            if row["origin"] is None:
                by_workspace[row["workspace_id"]].append(row)
            else:
                self.figures[f"rows of origin {row['origin']}"] += 1
            self._judge_row(row)
        for workspace_id, calls in self.calls.items():
            self._judge_workspace(workspace_id, calls, by_workspace[workspace_id])
        self._judge_vendor(rows)

    def _judge_vendor(self, rows: list[sa.RowMapping]) -> None:
        """Every resource of ours is that of one row; every one that was noted, too."""
        noted = sa.select(journal.c.external_id).where(journal.c.external_id.is_not(None))
        known = {entry["external_id"] for entry in self._read(noted)}
        there = [row for row in rows if row["released_at"] is None and row["retired_at"] is None]
        owned = {row["external_id"] for row in there}
        kept = {row["idempotency_key"] for row in rows if row["phase"] == Phase.KEPT}
        for found in self.site.ours():
            if found.external_id in owned or found.key in kept:
                continue
            unknown = found.key in self.site.overtaken and found.external_id not in known
            if unknown and not self.scenario.traits.lists:
                self.figures["late beyond all bounds, and nothing lists it"] += 1
            else:
                self.object("leaked", f"{found.external_id} of {found.workspace_id}")

    def _judge_row(self, row: sa.RowMapping) -> None:
        name = f"{row['workspace_id']}#{row['incarnation']}"
        if row["lease_owner"] is not None:
            self.object("claimed for ever", name)
        if row["released_at"] is not None or row["retired_at"] is not None:
            return
        settled = row["phase"] == Phase.READY and row["desired"] == "wanted"
        if row["phase"] == Phase.KEPT or self._drifted(row):
            return
        if not settled or row["reason"] or row["observed_generation"] != row["generation"]:
            self.object("not settled", f"{name}: {row['phase']} {row['reason']}")

    def _drifted(self, row: sa.RowMapping) -> bool:
        """Whether its resource was taken away, and no inventory can tell."""
        told = self.scenario.traits.lists and not self.list_not_believed
        return row["external_id"] in self.site.removed_by_hand and not told

    def _judge_workspace(
        self, workspace_id: str, calls: list[HostCall], rows: list[sa.RowMapping]
    ) -> None:
        live = [r for r in rows if r["release_started_at"] is None and r["retired_at"] is None]
        if len(live) > 1:
            self.object("doubled", f"{workspace_id} has {len(live)} live rows")
        self._judge_intent(workspace_id, calls, rows, live)
        kept = {row["idempotency_key"] for row in rows if row["phase"] == Phase.KEPT}
        wanted = live[0]["external_id"] if live and live[0]["desired"] == "wanted" else None
        there = [r for r in self.site.ours() if r.workspace_id == workspace_id]
        for found in there:
            excused = found.key in self.site.overtaken or found.key in kept
            if found.external_id != wanted and not excused:
                kind = "leaked" if wanted is None else "doubled"
                self.object(kind, f"{found.external_id} of {workspace_id}, which has {wanted}")
        if wanted is None or self._drifted(live[0]):
            return
        mine = [found for found in there if found.external_id == wanted]
        if not mine:
            self.object("lost", f"{wanted} of {workspace_id}")
        elif mine[0].params != live[0]["params"]:
            if wanted in self.site.overwritten or mine[0].key in self.site.overtaken:
                self.figures["late updates that won"] += 1
            elif mine[0].key in self.site.denied:
                self.figures["params of a create that was denied"] += 1
            else:
                self.object("not as asked", f"{workspace_id}: {mine[0].params}")

    def _judge_intent(
        self,
        workspace_id: str,
        calls: list[HostCall],
        rows: list[sa.RowMapping],
        live: list[sa.RowMapping],
    ) -> None:
        """The last intent wins, but for what an operator holds or gave up."""
        last = {(call.event, call.plan) for call in last_words(calls)}
        if any(row["hold"] or row["phase"] == Phase.KEPT for row in rows[-1:]):
            return
        wanted = bool(live) and live[0]["desired"] == "wanted"
        if wanted:
            plan = live[0]["params"]["plan"]
            fits = bool({(Event.READY, plan), (Event.READY, ANY_PLAN)} & last)
        else:
            fits = any(event is Event.REMOVING for event, _ in last)
        if not fits:
            said = live[0]["params"] if wanted else "released"
            self.object("not the last intent", f"{workspace_id}: {said}, but hosts said {last}")


def _went_back(before: sa.RowMapping, row: sa.RowMapping) -> bool:
    """Whether a phase follows on another that nothing leads back from."""
    if before["phase"] == Phase.RELEASED:
        return row["phase"] != Phase.RELEASED
    if row["release_started_at"] is not None:
        ending = (Phase.RELEASING, Phase.RELEASED, Phase.STALLED, Phase.KEPT)
        return row["phase"] not in ending
    if row["reason"] == Why.QUARANTINED:  # its update, if it was ready
        return False
    started_over = (Phase.PENDING, Phase.UNRESOLVED, Phase.STALLED)
    return before["phase"] == Phase.READY and row["phase"] in started_over


def last_words(calls: list[HostCall]) -> list[HostCall]:
    """Give the calls that may have been the last to be recorded.

    A recorded call rules out whatever had ended when it was sent; a call without an answer may
    count or not.
    """
    found = []
    for call in calls:
        later = (other for other in calls if other.recorded and other.sent > call.ended)
        if not any(later):
            found.append(call)
    if not any(call.recorded for call in calls):
        found.append(HostCall("", Event.REMOVING, "", 0.0))
    return found
