"""The figures and their goals: the one place that says what is promised.

Some have none, and are there to compare with. A goal is a bound on a ratio, both sides of which are
measured in one run; counts and sizes have no spread.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure's name, what it is, and the bound it must keep."""

    name: str
    what: str
    bound: float | None
    sense: Literal["<=", ">="] = "<="
    unit: str = "ratio"
    stretch: float | None = None

    @property
    def told(self) -> str:
        """The bound as it is written; a dash where there is none."""
        return "-" if self.bound is None else f"{self.sense} {self.bound:g}"

    def holds(self, value: float) -> bool:
        """Whether a measured value keeps the bound, if there is one."""
        if self.bound is None:
            return True
        return value <= self.bound if self.sense == "<=" else value >= self.bound


def _most(name: str, bound: float, what: str, *, stretch: float | None = None) -> Goal:
    return Goal(name, what, bound, "<=", stretch=stretch)


def _least(name: str, bound: float, what: str, *, stretch: float | None = None) -> Goal:
    return Goal(name, what, bound, ">=", stretch=stretch)


def _compared(name: str, sense: Literal["<=", ">="], what: str) -> Goal:
    return Goal(name, what, None, sense)


def _count(name: str, bound: float, unit: str, what: str) -> Goal:
    return Goal(name, what, bound, "<=", unit)


GOALS = (
    # -- a host's call
    _most("handler_vs_raw", 1.6, "p50 of on_ready ÷ raw asyncpg in a tool", stretch=1.25),
    _most("handler_vs_hand", 0.42, "p50 of on_ready ÷ written by hand (ORM)", stretch=0.32),
    _most("handler_sqlite_vs_raw", 1.3, "the same on SQLite ÷ raw sqlite3 in a tool"),
    _most("handler_sqlite_vs_hand", 0.35, "the same on SQLite ÷ written by hand"),
    _most("handler_client_vs_hand", 0.65, "through an in-memory client ÷ written by hand"),
    _least("handler_rate8", 0.60, "calls/s, 8 callers ÷ a tool that does nothing"),
    _least("handler_rate64", 0.50, "calls/s, 64 callers ÷ a tool that does nothing"),
    _most("handler_tail8", 3.0, "8 callers: p99 ÷ p50, PostgreSQL"),
    _most("handler_tail8_sqlite", 4.0, "8 callers: p99 ÷ p50, SQLite"),
    _most("handler_http_vs_hand", 0.82, "over HTTP, one caller ÷ written by hand"),
    _least("duplicate_rate", 3.0, "statements/s of an unchanged ready ÷ a plain upsert"),
    _count("duplicate_fsyncs", 0, "fsyncs", "flushes of the log by a hundred unchanged readys"),
    # -- the worker
    _least("reconcile_vs_procrastinate", 20, "rows/s ÷ procrastinate, concurrency 20", stretch=40),
    _least("reconcile_vs_pgqueuer", 1.2, "rows/s ÷ pgqueuer, batch 100", stretch=2.0),
    _compared("reconcile_vs_dbos", ">=", "rows/s ÷ DBOS, workflows of one step"),
    _least("reconcile_vs_floor", 0.45, "rows/s ÷ a bare hand-written stream", stretch=0.70),
    _count("reconcile_cpu", 0.10, "ms/row", "CPU of the worker for a row"),
    _count("reconcile_commits", 0.05, "commits/row", "commits for a row at 100 slots"),
    _least("slow_vendor", 0.75, "rows/s ÷ slots/latency, 50 ms exponential vendor"),
    _least("two_workers", 1.8, "rows/s of two processes ÷ one, 20 ms vendor"),
    _most("wakeup_vs_procrastinate", 0.60, "commit to vendor call, p50 ÷ procrastinate's"),
    _most("wakeup_p99_vs_procrastinate", 1.0, "the same, p99"),
    _compared("wakeup_vs_listen", "<=", "the same, p50 ÷ LISTEN, NOTIFY and a claim by hand"),
    _least("wakeup_cost", 0.90, "upserts/s at 8 callers, with wake-ups ÷ without"),
    _most("wakeup_sqlite", 1.0, "commit to vendor call, p50 ÷ the poll of data_version"),
    _count("wakeup_sqlite_cpu", 0.5, "% of a core", "CPU of an idle worker on SQLite"),
    # -- what grows with the fleet, and what does not
    _most("empty_poll_growth", 1.10, "an empty poll: 1,000,000 idle rows ÷ 10,000"),
    _most("claim_growth", 1.40, "claiming 100 due rows: 1,000,000 idle rows ÷ 10,000"),
    _most("sweep_time", 2.0, "a stale sweep ÷ one plain sequential scan"),
    _count("sweep_page", 15, "ms", "the longest page of that sweep"),
    _count("row_bytes", 450, "bytes", "a settled row with its indexes"),
    _least("hot_share", 0.99, "heartbeats that touch no index"),
    _count("wal_touch", 300, "bytes", "log written by a heartbeat"),
    _count("idle_writes", 0, "rows", "rows written and notifications sent in an idle minute"),
    _least("backlog_drain", 0.9, "rows/s at the end of a backlog ÷ at its start"),
    _most("import_time", 1.10, "importing Lifecycle ÷ importing FastMCP alone"),
    _count("import_modules", 0, "modules", "database libraries loaded by that import"),
    _most("worker_memory", 1.10, "RSS of a worker: 1,000,000 rows ÷ 1,000"),
)

BY_NAME = {goal.name: goal for goal in GOALS}
