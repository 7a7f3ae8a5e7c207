"""The other view of Acme, for the conformance suite.

`nimble-lifecycle check-vendor vendor:AcmeVendor --sandbox sandbox:AcmeSandbox`, with the worker's
environment and an Acme that may be filled and emptied.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from http import HTTPStatus
from secrets import token_hex

import httpx2
from vendor import AcmePage, AcmeSettings, AcmeVendor

from nimble_lifecycle.protocol import Tenancy
from nimble_lifecycle.reconciler import External, Provisioned, Vendor
from nimble_lifecycle.testing.http import HttpSandbox

CHOSEN = {"name", "owner", "reference", "plan", "from_name", "key_fingerprint"}
"""What only a customer changes; the state of a tenancy changes by itself."""

PATIENCE = 1.5
"""Seconds the adapter waits for an answer that the suite holds back."""


class AcmeSandbox(HttpSandbox):
    """Looks at Acme with the admin token, past the adapter."""

    _admin: httpx2.AsyncClient

    def __init__(self) -> None:
        self._settings = AcmeSettings()
        self.url = self._settings.url

    async def __aenter__(self) -> "AcmeSandbox":
        """Open the client."""
        token = self._settings.admin_token.get_secret_value()
        self._admin = httpx2.AsyncClient(
            base_url=self.url, headers={"Authorization": f"Bearer {token}"}
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self._admin.aclose()

    async def resources(self) -> list[External]:
        """List every tenancy, whoever made it."""
        found: list[External] = []
        after: int | None = 0
        while after is not None:
            answer = await self._admin.get("/tenancies", params={"after": str(after)})
            page = AcmePage.model_validate_json(answer.raise_for_status().content)
            found += [
                External(each.id, key=each.reference, details=each.model_dump(include=CHOSEN))
                for each in page.tenancies
            ]
            after = page.next
        return found

    async def usable(self, made: Provisioned) -> bool:
        """Whether the tenancy's own key opens its mail."""
        try:
            key = (self._settings.secrets_dir / str(made.details["key_ref"])).read_text()
        except FileNotFoundError:
            return False
        answer = await self._admin.get("/mail", headers={"Authorization": f"Bearer {key}"})
        return answer.is_success

    async def occupy(self, tenancy: Tenancy) -> str:
        """Let somebody else take the name."""
        answer = await self._admin.post(
            "/tenancies",
            json={"name": tenancy.external_name, "owner": "somebody", "reference": "somebody's"},
            headers={"Idempotency-Key": token_hex(16)},
        )
        return str(answer.raise_for_status().json()["id"])

    async def remove(self, external_id: str) -> None:
        """Delete a tenancy by hand."""
        answer = await self._admin.delete(f"/tenancies/{external_id}")
        if answer.status_code != HTTPStatus.NOT_FOUND:
            answer.raise_for_status()

    @asynccontextmanager
    async def at(self, url: str) -> AsyncIterator[Vendor]:
        """Open an adapter that finds Acme elsewhere."""
        there = self._settings.model_copy(update={"url": url, "timeout": PATIENCE})
        async with AcmeVendor(there) as vendor:
            yield vendor
