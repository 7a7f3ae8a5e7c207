"""Acme's adapter with short limits, in the kinds there are of settling an unknown create."""

import os
from datetime import timedelta
from fnmatch import fnmatch
from secrets import token_hex
from typing import ClassVar

from dying import Death
from vendor import AcmeTenancy, AcmeVendor, needed

from nimble_lifecycle.reconciler import Tenancy, Vendor
from nimble_lifecycle.reconciler.http import Call

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

    lag = timedelta(seconds=1)
    time_limit = timedelta(seconds=float(os.environ.get("CHAOS_TIME_LIMIT", "0.5")))
    death = Death.from_environment()

    async def _ask(self, call: Call, method: str, path: str, **rest: object) -> bytes:  # type: ignore[override]
        answer = await super()._ask(call, method, path, **rest)  # type: ignore[arg-type]
        self.death.at("applied", step_of(f"{method} {path}"))
        return answer


class Keyed(Acme):
    """May repeat a key, and looks nothing up."""

    find = Vendor.find


class Marked(Acme):
    """Only looks up: this Acme knows no keys, and each create makes another tenancy."""

    repeatable: ClassVar[timedelta | None] = None

    async def _create(self, tenancy: Tenancy) -> AcmeTenancy:
        mark = needed(tenancy.idempotency_key, "idempotency key")
        name = f"{tenancy.external_name}-{token_hex(4)}"
        body = {"name": name, "owner": mark.partition("-")[0], "reference": mark}
        headers = {"Idempotency-Key": token_hex(16)}
        made = await self._ask(Call.CREATE, "POST", "/tenancies", json=body, headers=headers)
        return AcmeTenancy.model_validate_json(made)


def step_of(request: str) -> str:
    """Name the step whose request this is; empty for any other request."""
    return next((step for step, known in REQUESTS.items() if fnmatch(request, known)), "")
