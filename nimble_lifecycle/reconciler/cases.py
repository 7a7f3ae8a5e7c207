"""What the four findings of a sweep are called, and what is done about each of them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from shlex import quote

from nimble_lifecycle.reconciler.court import Case
from nimble_lifecycle.reconciler.findings import Finding, Outcome, spoken
from nimble_lifecycle.reconciler.inventory import Stray
from nimble_lifecycle.reconciler.listing import Source
from nimble_lifecycle.reconciler.vendor import External
from nimble_lifecycle.store.sightings import Act, Sort
from nimble_lifecycle.store.sweeps import Loose, Member, SweepStore, Unknown

HOUR = 3600.0
"""Seconds between the two strikes that a release needs."""

OLD_ENOUGH = 7 * 86400.0
"""Seconds a resource must have existed to be released as an orphan."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the operator wants of sweeps. Times in seconds."""

    stale_after: float = 30 * 86400.0
    """Silence that is worth telling."""
    release_stale_after: float | None = None
    """Silence after which a workspace is released; None: never."""
    release_orphans: bool = False
    release_unlisted: bool = False
    installations: Source | None = None
    """Lists (tenant id, workspace id) of every workspace in which the host has the server."""


@dataclass(frozen=True, slots=True)
class Cases:
    """Makes cases of what a sweep that began at `began` finds.

    With `keeps` a resource without a row is only listed, as the adapter wants of every release.
    """

    store: SweepStore
    kind: str
    wishes: Wishes
    began: datetime
    keeps: bool

    def stale(self, member: Member) -> Case:
        """Judge a workspace that was not heard from for long."""
        silence = self.wishes.release_stale_after
        why = f"not heard from for {spoken(self._age(member.last_seen_at))}"
        ripe = silence is not None and self._age(member.last_seen_at) >= silence
        return self._release(Sort.STALE, member, why, silence or 0.0, wanted=ripe)

    def unlisted(self, member: Member) -> Case:
        """Judge a workspace that the host does not list."""
        why = "the host does not list the workspace"
        recent = self._age(member.last_seen_at) < HOUR
        if recent:
            why += ", which was heard from within the hour"
        wanted = self.wishes.release_unlisted and not recent
        return self._release(Sort.UNLISTED, member, why, HOUR, wanted=wanted)

    def missing(self, member: Member) -> Case:
        """Judge a ready row whose resource the vendor does not list."""
        why = "the vendor does not list its resource"
        subject = str(member.external_id)
        if member.lease_expires_at is not None:
            why += "; a worker is at it"
            return Case(_of(Sort.DRIFT, member, why, Outcome.WAITING), subject)

        def act(allowed: int) -> Act:
            return self.store.retire_vanished(
                member.id,
                subject,
                member.lease_token,
                why="its resource was missing in two complete inventories",
                allowed=allowed,
                in_turn=True,
            )

        return self._unless_paused(_of(Sort.DRIFT, member, why), subject, member, act)

    def stray(self, stray: Stray, owner_id: str) -> Case:
        """Judge a resource that carries our mark and is no row's."""
        external, of = stray.external, stray.of
        finding = Finding(
            sort=Sort.ORPHAN,
            outcome=Outcome.REPORTED,
            why=_proof(stray),
            tenancy_id=None if of is None else of.id,
            tenant_id=None if of is None else of.tenant_id,
            workspace_id=None if of is None else of.workspace_id,
            incarnation=None if of is None else of.incarnation,
            external_id=external.external_id,
            since=external.created_at,
        )
        if stray.named is None or not self.wishes.release_orphans:
            return Case(finding, external.external_id)
        if external.created_at is None:
            finding = replace(finding, why=f"{finding.why}; its age is not known")
            return Case(finding, external.external_id)
        if self._age(external.created_at) <= OLD_ENOUGH:
            why = f"{finding.why}; younger than {spoken(OLD_ENOUGH)}"
            waits = replace(finding, why=why, outcome=Outcome.WAITING)
            return Case(waits, external.external_id)
        loose = Loose(
            external_id=external.external_id,
            owner_id=owner_id,
            named=stray.named,
            of=of,
            created_at=external.created_at,
        )

        def act(allowed: int) -> Act:
            return self.store.release_loose(
                self.kind, loose, why=finding.why, allowed=allowed, keeps=self.keeps
            )

        return Case(finding, external.external_id, act)

    def match(self, row: Unknown, external: External) -> Finding:
        """Tell of a resource that a create of unknown outcome may have made; a person decides."""
        made = "it was made while a create of this row may have been applied"
        seen = made if external.key is None else "it carries the key of this row's create"
        return Finding(
            sort=Sort.MATCH,
            outcome=Outcome.REPORTED,
            why=f"{seen}; if it is the row's:"
            f" `nimble-reconcile adopt {row.id} {quote(external.external_id)}`",
            tenancy_id=row.id,
            tenant_id=row.tenant_id,
            workspace_id=row.workspace_id,
            incarnation=row.incarnation,
            external_id=external.external_id,
            since=external.created_at,
        )

    def _release(
        self, sort: Sort, member: Member, why: str, silence: float, *, wanted: bool
    ) -> Case:
        finding, subject = _of(sort, member, why), str(member.id)
        if not wanted:
            return Case(finding, subject)

        def act(allowed: int) -> Act:
            return self.store.ask_release(member, sort, silence, why=why, allowed=allowed)

        return self._unless_paused(finding, subject, member, act)

    def _unless_paused(
        self, finding: Finding, subject: str, member: Member, act: Callable[[int], Act]
    ) -> Case:
        if member.paused:
            return Case(replace(finding, why=f"{finding.why}; it is paused"), subject)
        return Case(finding, subject, act)

    def _age(self, at: datetime) -> float:
        return (self.began - at).total_seconds()


def _of(sort: Sort, member: Member, why: str, outcome: Outcome = Outcome.REPORTED) -> Finding:
    return Finding(
        sort=sort,
        outcome=outcome,
        why=why,
        tenancy_id=member.id,
        tenant_id=member.tenant_id,
        workspace_id=member.workspace_id,
        incarnation=member.incarnation,
        external_id=member.external_id,
        since=member.proven_at if sort is Sort.DRIFT else member.last_seen_at,
    )


def _proof(stray: Stray) -> str:
    if stray.named is None:
        return "it carries our owner id alone, which proves no tenancy: look at it yourself"
    if stray.of is None:
        return "it carries a key of ours, of a row that is not there"
    if stray.of.external_id == stray.external.external_id:
        return "it carries the key of a tenancy that is over, and is still there"
    return "it carries the key of a tenancy that has or had another resource"
