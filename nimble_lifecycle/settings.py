"""One settings model per half, read from NIMBLE_* and built only at the edges.

Arguments of the command line or of `Lifecycle` beat the environment, the environment beats the
defaults written here.
"""

import re
from pathlib import Path
from typing import Annotated

from platformdirs import user_data_path
from pydantic import AfterValidator, BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

_DURATION = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s|m|h|d|)")
_SECONDS = {"ms": 0.001, "": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


MOST = 2**31 - 1
"""The largest number of a database's integers."""

LONGEST = 36_500 * 86_400.0
"""Seconds of the longest duration: a hundred years, which every database can count with."""


def parse_duration(value: object) -> float:
    """Read a duration in seconds: a number, or `90s`, `15m`, `24h`, `7d`, `250ms`.

    Raises ValueError with the accepted forms, or for more than `LONGEST`.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        value = str(value)
    match = _DURATION.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None:
        raise ValueError("not a duration: write seconds, or a number with ms, s, m, h or d")
    seconds = float(match["number"]) * _SECONDS[match["unit"]]
    if seconds > LONGEST:
        raise ValueError("a duration is at most a hundred years: write 36500d")
    return seconds


Duration = Annotated[float, BeforeValidator(parse_duration)]
"""Seconds; accepts the forms of `parse_duration`."""


def _week_at_least(seconds: float) -> float:
    if seconds < 7 * 86_400.0:
        raise ValueError("a silence that ends in a release is at least a week: write 7d or more")
    return seconds


def default_database_url() -> str:
    """Give the SQLite file both halves use when nothing else is said.

    It lies in platformdirs' user data directory of `nimble-lifecycle`, whatever the working
    directory, so that a server and a worker of one user meet without any setting.
    """
    path: Path = user_data_path("nimble-lifecycle", appauthor=False) / "nimble.db"
    return f"sqlite:///{path}"


class ServerSettings(BaseSettings):
    """What the server half reads from its environment."""

    model_config = SettingsConfigDict(env_prefix="NIMBLE_", extra="ignore")

    database_url: SecretStr = Field(default_factory=lambda: SecretStr(default_database_url()))
    """`sqlite:///…` or `postgresql://…`; a secret, since a DSN may hold a password."""


class WorkerSettings(BaseSettings):
    """What the worker half reads from its environment; all durations in seconds."""

    model_config = SettingsConfigDict(env_prefix="NIMBLE_", extra="ignore")

    database_url: SecretStr = Field(default_factory=lambda: SecretStr(default_database_url()))
    """`sqlite:///…` or `postgresql://…`."""
    deployment: str | None = Field(default=None, pattern=r"^[\w.:/@-]{1,100}$")
    """This deployment's name, which tells a physical copy of its database from the original."""
    concurrency: int = Field(default=20, ge=1, le=1000)
    """Vendor calls in flight at most."""
    poll: Duration = Field(default=1.0, gt=0)
    """Longest time between two looks at the database; a wake-up comes sooner."""
    grace: Duration = Field(default=86400.0, ge=0)
    """Between the worker's first sight of an asked release and the release."""
    drain: Duration = Field(default=10.0, ge=0)
    """How long SIGTERM waits for calls in flight."""
    backoff_first: Duration = Field(default=1.0, gt=0)
    """Shortest back-off."""
    backoff_longest: Duration = Field(default=600.0, gt=0)
    """Longest back-off."""
    max_creates: int = Field(default=5, ge=1, le=MOST)
    """Creates a row may begin without a certain outcome."""
    max_live: int | None = Field(default=None, ge=0, le=MOST)
    """Tenancies that may exist; no further one is begun. None: any number."""
    max_creates_per_hour: int | None = Field(default=None, ge=0, le=MOST)
    """Tenancies that may be begun within an hour. None: any number."""
    sweep_every: Duration = Field(default=3600.0, ge=0)
    """Between two sweeps of a worker; 0: it does not sweep."""
    stale_after: Duration = Field(default=30 * 86400.0, gt=0)
    """Silence of a workspace that sweeps report."""
    release_stale_after: Annotated[Duration, AfterValidator(_week_at_least)] | None = None
    """Silence of a workspace after which sweeps ask for its release; None: never."""
    release_orphans: bool = False
    """Whether sweeps release resources of ours that no row has."""
    installations: str | None = None
    """`module:attr` or `file.py:attr` of what lists where the host has the server."""
    release_unlisted: bool = False
    """Whether sweeps ask for the release of workspaces that are not listed there."""
