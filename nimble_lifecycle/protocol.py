"""Words of the wire and of the rows, and the one view of a tenancy both halves show. No I/O.

Everything here is a plain value: identifiers a host reads (HOST page of the platform, MCP extension
`ai.nimblebrain/lifecycle`), the stable words of the columns, and two frozen dataclasses.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Final, NoReturn, TypeAlias
from uuid import UUID

from pydantic import JsonValue

LIFECYCLE_ID: Final = "ai.nimblebrain/lifecycle"
"""Identifier of the MCP extension, and the key of the marker in a tool's `_meta`."""

HOST_ID: Final = "ai.nimblebrain/host"
"""Key of the host block in the `_meta` of a manifest or catalog entry."""

HOST_VERSION: Final = "1.0"
"""`host_version` of a block written by this package; a value that is already there is kept."""

MAX_WORKSPACE_ID_LENGTH: Final = 255
"""Longest workspace id, tenant id or kind accepted, in characters."""

MAX_EXTERNAL_ID_LENGTH: Final = 1024
"""Longest id a vendor may give, in characters."""

MAX_EXTERNAL_ID_BYTES: Final = 2048
"""Largest id a vendor may give, in bytes of UTF-8: PostgreSQL indexes no more than 2704 with the
kind."""

LARGEST_NUMBER: Final = 2**31 - 1
"""The largest number of an integer column; the server's role can write it there."""

_UNPRINTABLE = re.compile(r"[\x00-\x1f\x7f\ud800-\udfff]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""Control characters, and halves of characters, which no database can store."""

FLEET: Final = "*"
"""No kind, but every one: for an operator's pause of the whole fleet."""

Json: TypeAlias = JsonValue
"""What a JSON document can hold."""


def is_external_id(value: object) -> bool:
    """Whether a vendor's id can be kept: text, not blank, not over-long, no control characters."""
    if not isinstance(value, str) or not value.strip():
        return False
    if len(value) > MAX_EXTERNAL_ID_LENGTH or _has(_UNPRINTABLE, value):
        return False
    return len(value.encode()) <= MAX_EXTERNAL_ID_BYTES


def _has(characters: re.Pattern[str], value: str) -> bool:
    """Whether one of these control characters is in a text; none of them is printable."""
    return not value.isprintable() and characters.search(value) is not None


class Event(StrEnum):
    """What a host tells a server. The value is the word of the marker in a tool's `_meta`."""

    READY = "ready"
    REMOVING = "removing"

    @property
    def block_key(self) -> str:
        """Key of this event's tool in the manifest's lifecycle block."""
        return f"on_{self.value}"


def marked_event(meta: Mapping[str, object] | None) -> str | None:
    """Give the event that a tool's `_meta` is marked with, known or not; None: not marked."""
    marker = (meta or {}).get(LIFECYCLE_ID)
    event = marker.get("event") if isinstance(marker, Mapping) else None
    return event if isinstance(event, str) else None


class Reason(StrEnum):
    """Why a host says *ready*: the user's act, or everything else. It proves nothing."""

    INSTALL = "install"
    RESUME = "resume"

    @classmethod
    def parse(cls, value: object) -> "Reason":
        """Read what a host sent; null, unknown words and other types mean `RESUME`."""
        return cls.INSTALL if value == cls.INSTALL.value else cls.RESUME


class Desired(StrEnum):
    """What a row asks for."""

    WANTED = "wanted"
    RELEASE = "release"


class Phase(StrEnum):
    """What the worker last established about a tenancy.

    `RELEASE_PENDING` is only ever shown: a release is asked for and has not started.
    """

    PENDING = "pending"
    PROVISIONING = "provisioning"
    READY = "ready"
    UNRESOLVED = "unresolved"
    STALLED = "stalled"
    RELEASE_PENDING = "release_pending"
    RELEASING = "releasing"
    RELEASED = "released"
    KEPT = "kept"


class Origin(StrEnum):
    """Where a row comes from that no host asked for."""

    SURPLUS = "surplus"
    """Made by a worker that had lost its lease, beside its row's own resource."""
    ORPHAN = "orphan"
    """Found at the vendor under our mark, in no row."""


class Why(StrEnum):
    """Stable words of the `reason` column: why a row is in its phase."""

    ABANDONED = "Abandoned"
    BACKING_OFF = "BackingOff"
    CAP_REACHED = "CapReached"
    CREATE_OUTCOME_UNKNOWN = "CreateOutcomeUnknown"
    CREDENTIAL_REFUSED = "CredentialRefused"
    FOREIGN = "Foreign"
    IN_PROGRESS = "InProgress"
    INVALID_IDENTITY = "InvalidIdentity"
    INVALID_PARAMS = "InvalidParams"
    NAME_CONFLICT = "NameConflict"
    OPERATION_OVERDUE = "OperationOverdue"
    ORPHAN = "Orphan"
    PAUSED = "Paused"
    PERMISSION_DENIED = "PermissionDenied"
    QUARANTINED = "Quarantined"
    RATE_LIMITED = "RateLimited"
    REJECTED = "Rejected"
    RELEASE_BREAKER_OPEN = "ReleaseBreakerOpen"
    SHARED_RESOURCE = "SharedResource"
    STILL_IN_USE = "StillInUse"
    SURPLUS = "Surplus"
    VANISHED = "Vanished"
    VENDOR_UNAVAILABLE = "VendorUnavailable"
    WAITING_FOR_PREDECESSOR = "WaitingForPredecessor"


OPERATOR_ONLY: Final = (
    Why.CREATE_OUTCOME_UNKNOWN,
    Why.NAME_CONFLICT,
    Why.SHARED_RESOURCE,
    Why.QUARANTINED,
)
"""Stalled for one of these, a row waits for a person; for any other, changed params wake it too."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """The place a server is installed into, as a verified source names it.

    `tenant_id` is empty where the host has none. Ids are opaque: empty, blank, over-long ones and
    control characters are refused, nothing else (`ValueError`).
    """

    workspace_id: str
    tenant_id: str = ""

    def __post_init__(self) -> None:
        _check_name("workspace id", self.workspace_id)
        if self.tenant_id != "":
            _check_name("tenant id", self.tenant_id)


def check_kind(kind: object) -> str:
    """Give what may be a kind, the name of a server; raises ValueError or TypeError."""
    name = _check_name("kind", kind)
    if name == FLEET:
        raise ValueError(f"the kind cannot be {FLEET!r}, which stands for every one")
    return name


def _check_name(label: str, value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"the {label} is no text but {type(value).__name__}")
    if not value.strip():
        raise ValueError(f"the {label} is {'blank' if value else 'empty'}")
    if len(value) > MAX_WORKSPACE_ID_LENGTH:
        raise ValueError(f"the {label} is over {MAX_WORKSPACE_ID_LENGTH} characters")
    if _has(_CONTROL, value):
        raise ValueError(f"the {label} has a control character")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """One life of one resource at the vendor for one workspace: a snapshot of its row.

    Never taken from a caller nor handed to one whole: a tool with such a parameter that lacks
    `lifecycle.ready_tenancy()`, or with such a result, raises TypeError where it is made.

    `phase` is the one shown (see `Phase`). `params` and `details` are JSON objects and never hold a
    secret; `details` is the vendor's side as `Provisioned.details` gave it. `idempotency_key` and
    `external_name` are stable over attempts and unique per tenancy; they are None until a worker
    first claims the row for a create. Times are aware, UTC.
    """

    id: UUID
    tenant_id: str
    workspace_id: str
    kind: str
    incarnation: int
    phase: Phase
    reason: str | None = None
    message: str | None = None
    params: Mapping[str, Json] = field(default_factory=dict)
    external_id: str | None = None
    external_name: str | None = None
    idempotency_key: str | None = None
    operation_id: str | None = None
    details: Mapping[str, Json] = field(default_factory=dict)
    first_seen_at: datetime
    release_after: datetime | None = None

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: object, _handler: object) -> NoReturn:
        """Refuse to be read from what somebody sends (pydantic's documentation, custom types)."""
        raise TypeError(
            "a Tenancy is neither taken from whoever calls a tool nor given to them. Have it"
            " supplied: `tenancy: Tenancy = lifecycle.ready_tenancy()`, in the official SDK"
            " `tenancy: Annotated[Tenancy, lifecycle.ready_tenancy()]`; and return the fields that"
            " the caller may see."
        )

    @property
    def workspace(self) -> Workspace:
        """The workspace this tenancy belongs to."""
        return Workspace(self.workspace_id, self.tenant_id)
