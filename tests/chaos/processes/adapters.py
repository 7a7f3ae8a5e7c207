"""Acme's adapter with short limits, in the kinds there are of settling an unknown create."""

import asyncio
import os
from collections.abc import Awaitable, Callable
from datetime import timedelta
from fnmatch import fnmatch
from secrets import token_hex
from typing import TypeVar

from fate import Fate
from vendor import AcmeTenancy, AcmeVendor, needed

from nimble_lifecycle.reconciler import (
    External,
    InProgress,
    Provisioned,
    Released,
    Tenancy,
    Vendor,
)
from nimble_lifecycle.reconciler.http import Call

T = TypeVar("T")

REQUESTS = {
    "create": "POST /tenancies",
    "key": "POST /tenancies/*/key",
    "update": "PATCH *",
    "find": "GET /tenancies",
    "poll": "GET /operations/*",
    "release": "DELETE *",
}
"""The request that a step is known by."""


class Acme(AcmeVendor):
    """Looks up, and may repeat a key."""

    lag = timedelta(seconds=float(os.environ.get("CHAOS_LAG", "1")))
    time_limit = timedelta(seconds=float(os.environ.get("CHAOS_TIME_LIMIT", "0.5")))
    fate = Fate.from_environment()

    async def _ask(self, call: Call, method: str, path: str, **rest: object) -> bytes:  # type: ignore[override]
        step = step_of(f"{method} {path}")
        await asyncio.sleep(0)  # the limit of this call runs from here on
        self.fate.at("begun", step)
        answer = await super()._ask(call, method, path, **rest)  # type: ignore[arg-type]
        self.fate.at("applied", step)
        return answer


class Keyed(Acme):
    """May repeat a key, and looks nothing up."""

    find = Vendor.find


class Marked(Acme):
    """Only looks up: this Acme knows no keys, and each create makes another tenancy."""

    repeatable: timedelta | None = None

    async def _create(self, tenancy: Tenancy) -> AcmeTenancy:
        mark = needed(tenancy.idempotency_key, "idempotency key")
        name = f"{tenancy.external_name}-{token_hex(4)}"
        body = {"name": name, "owner": mark.partition("-")[0], "reference": mark}
        headers = {"Idempotency-Key": token_hex(16)}
        made = await self._ask(Call.CREATE, "POST", "/tenancies", json=body, headers=headers)
        return AcmeTenancy.model_validate_json(made)


class Plain(Vendor):
    """`Marked` with plain methods: a call that is over its limit goes on to its end."""

    kind = Marked.kind
    lag = Marked.lag
    time_limit = Marked.time_limit

    def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        return asyncio.run(self._asked(lambda marked: marked.provision(tenancy)))

    def poll(self, tenancy: Tenancy) -> Provisioned | InProgress:
        return asyncio.run(self._asked(lambda marked: marked.poll(tenancy)))

    def find(self, tenancy: Tenancy) -> External | InProgress | None:
        return asyncio.run(self._asked(lambda marked: marked.find(tenancy)))

    def release(self, tenancy: Tenancy) -> Released:
        return asyncio.run(self._asked(lambda marked: marked.release(tenancy)))

    @staticmethod
    async def _asked(call: Callable[[Marked], Awaitable[T]]) -> T:
        async with Marked() as marked:
            return await call(marked)  # type: ignore[arg-type]  # entering gives itself


def step_of(request: str) -> str:
    """Name the step whose request this is; empty for any other request."""
    return next((step for step, known in REQUESTS.items() if fnmatch(request, known)), "")
