"""The worker's adapter for Acme: one sending tenancy per workspace.

`nimble-reconcile run vendor:AcmeVendor`, with `ACME_ADMIN_TOKEN`, `ACME_URL` and
`ACME_SECRETS_DIR` in the worker's environment only.

A tenancy takes two steps, making it and issuing its API key. Both are written as "look at what
there is, do what is missing", so it does not matter where the call before was interrupted.
"""

import hashlib
import os
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager, nullcontext, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Final, Literal
from urllib.parse import quote

import httpx2
from params import OutreachParams
from pydantic import BaseModel, ConfigDict, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from nimble_lifecycle.errors import ConfigurationError, UnknownOutcome, VendorError
from nimble_lifecycle.reconciler import (
    External,
    Gone,
    InProgress,
    PermanentError,
    Provisioned,
    Released,
    Tenancy,
    Vendor,
)
from nimble_lifecycle.reconciler.http import Call, outcome_of

PROVISIONING_LIMIT: Final = 600.0
"""Seconds Acme has to make a tenancy before we call the outcome unknown."""


class AcmeSettings(BaseSettings):
    """What the adapter reads from its environment, `ACME_*`."""

    model_config = SettingsConfigDict(env_prefix="ACME_", extra="ignore", hide_input_in_errors=True)

    url: str = "http://127.0.0.1:8800"
    admin_token: SecretStr = SecretStr("")
    secrets_dir: Path = Path("acme-secrets")
    timeout: float = Field(default=5.0, gt=0)
    """Seconds in which Acme must answer a request."""


class Answer(BaseModel):
    """Base of what Acme answers; a malformed one is never quoted."""

    model_config = ConfigDict(hide_input_in_errors=True)


class AcmeTenancy(Answer):
    """A tenancy as Acme shows it."""

    id: str = Field(pattern=r"^[A-Za-z0-9_-]+$")
    owner: str
    reference: str
    plan: str
    from_name: str
    sender: str
    state: Literal["provisioning", "active"]
    operation_id: str
    created_at: datetime
    key_fingerprint: str | None

    def has(self, params: OutreachParams) -> bool:
        """Whether it is set up as the workspace chose."""
        return (self.plan, self.from_name) == (params.plan, params.from_name)

    @property
    def details(self) -> dict[str, str]:
        """What ordinary tools need; the key itself is only referred to."""
        return {"key_ref": key_ref(self.id), "sender": self.sender, "plan": self.plan}


class AcmePage(Answer):
    """One page of Acme's listing."""

    tenancies: list[AcmeTenancy]
    next: int | None


class AcmeOperation(Answer):
    """An operation as Acme shows it."""

    tenancy: AcmeTenancy


class IssuedKey(Answer):
    """Acme's answer to a request for a key, the only time it is shown."""

    api_key: SecretStr


class KeyFiles:
    """A directory of files that only we may read; stands for a secret store.

    Raises ConfigurationError for a directory that others may look into.
    """

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & 0o077:
            raise ConfigurationError("ACME_SECRETS_DIR is open to others: chmod it to 0700")
        self._directory = directory

    def holds(self, reference: str, fingerprint: str | None) -> bool:
        """Whether the key kept under this reference is the one Acme means."""
        try:
            key = self._path(reference).read_bytes()
        except FileNotFoundError:
            return False
        return hashlib.sha256(key).hexdigest()[:16] == fingerprint

    def put(self, reference: str, key: SecretStr) -> None:
        """Keep a key; a reader sees the old one or the new one, never half."""
        descriptor, name = tempfile.mkstemp(dir=self._directory)  # made with 0600
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(key.get_secret_value())
                file.flush()
                os.fsync(file.fileno())
            Path(name).replace(self._path(reference))
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise

    def remove(self, reference: str) -> None:
        """Forget a key, if it is there."""
        self._path(reference).unlink(missing_ok=True)

    def _path(self, reference: str) -> Path:
        return self._directory / Path(reference).name  # never outside, whatever a row says


class AcmeVendor(Vendor):
    """Makes, looks up and removes tenancies at Acme; settings come from the environment."""

    kind = "acme-outreach"
    repeatable = timedelta(hours=24)
    params_model = OutreachParams

    _client: httpx2.AsyncClient
    _keys: KeyFiles

    def __init__(self, settings: AcmeSettings | None = None) -> None:
        self._settings = settings

    async def __aenter__(self) -> "AcmeVendor":
        """Open the client; ConfigurationError where the environment lacks something."""
        settings = self._settings or AcmeSettings()
        token = settings.admin_token.get_secret_value().strip()
        if not token:
            raise ConfigurationError("ACME_ADMIN_TOKEN is not set: give the worker Acme's token")
        self._keys = KeyFiles(settings.secrets_dir)
        self._client = httpx2.AsyncClient(
            base_url=settings.url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(settings.timeout, connect=min(2.0, settings.timeout)),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        """Close the client."""
        await self._client.aclose()

    async def provision(self, tenancy: Tenancy) -> Provisioned | InProgress:
        """Make the tenancy, or finish it, or bring it to changed params."""
        if tenancy.external_id is None:
            return await self._finish(tenancy, await self._create(tenancy))
        shown = await self._ask(Call.READ, "GET", one(tenancy.external_id))
        return await self._finish(tenancy, AcmeTenancy.model_validate_json(shown))

    async def poll(self, tenancy: Tenancy) -> Provisioned | InProgress:
        """Finish the tenancy once Acme has made it."""
        operation_id = quote(needed(tenancy.operation_id, "operation id"), safe="")
        shown = AcmeOperation.model_validate_json(
            await self._ask(Call.READ, "GET", f"/operations/{operation_id}")
        )
        return await self._finish(tenancy, shown.tenancy)

    async def find(self, tenancy: Tenancy) -> External | InProgress | None:
        """Look for what carries our whole key; what is half made is for `poll` to finish."""
        key = needed(tenancy.idempotency_key, "idempotency key")
        async for shown in self._listing({"reference": key}):
            if shown.reference != key:  # a vendor may match loosely; only the whole key is ours
                continue
            finished = shown.state == "active" and shown.has(wishes(tenancy))
            if finished and self._keeps_key_of(shown):
                return external(shown)
            return InProgress(shown.operation_id, poll_after=0.1, deadline=PROVISIONING_LIMIT)
        return None

    async def release(self, tenancy: Tenancy) -> Released:
        """Delete the tenancy at Acme, then our copy of its key."""
        external_id = needed(tenancy.external_id, "external id")
        # Gone: deleted by hand, or by the call before, which did not live to remove the key.
        with suppress(Gone):
            await self._ask(Call.CHANGE, "DELETE", one(external_id))
        self._keys.remove(key_ref(external_id))
        return Released()

    async def inventory(self) -> AsyncIterator[External]:
        """List every tenancy of this account."""
        async for shown in self._listing({}):
            yield external(shown)

    async def _create(self, tenancy: Tenancy) -> AcmeTenancy:
        # The body never changes between attempts: params, which may, are set afterwards.
        key = needed(tenancy.idempotency_key, "idempotency key")
        body = {"name": tenancy.external_name, "owner": key.partition("-")[0], "reference": key}
        made = await self._ask(
            Call.CREATE, "POST", "/tenancies", json=body, headers={"Idempotency-Key": key}
        )
        return AcmeTenancy.model_validate_json(made)

    async def _finish(self, tenancy: Tenancy, shown: AcmeTenancy) -> Provisioned | InProgress:
        if shown.state == "provisioning":
            return InProgress(shown.operation_id, poll_after=0.2, deadline=PROVISIONING_LIMIT)
        with half_made() if tenancy.external_id is None else nullcontext():
            shown = await self._set_up(tenancy, shown)
        return Provisioned(shown.id, dict(shown.details))

    async def _set_up(self, tenancy: Tenancy, shown: AcmeTenancy) -> AcmeTenancy:
        wanted = wishes(tenancy)
        if not shown.has(wanted):
            changed = await self._ask(Call.CHANGE, "PATCH", one(shown.id), json=wanted.model_dump())
            shown = AcmeTenancy.model_validate_json(changed)
        if not self._keeps_key_of(shown):
            issued = await self._ask(Call.CHANGE, "POST", f"{one(shown.id)}/key")
            key = IssuedKey.model_validate_json(issued).api_key
            self._keys.put(key_ref(shown.id), key)
        return shown

    def _keeps_key_of(self, shown: AcmeTenancy) -> bool:
        return self._keys.holds(key_ref(shown.id), shown.key_fingerprint)

    async def _listing(self, query: Mapping[str, str]) -> AsyncIterator[AcmeTenancy]:
        after: int | None = 0
        while after is not None:
            params = {**query, "after": str(after)}
            page = AcmePage.model_validate_json(
                await self._ask(Call.LIST, "GET", "/tenancies", params=params)
            )
            for shown in page.tenancies:
                yield shown
            after = page.next

    async def _ask(
        self,
        call: Call,
        method: str,
        path: str,
        *,
        json: Mapping[str, str | None] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> bytes:
        with outcome_of(call):
            response = await self._client.request(
                method, path, json=json, params=params, headers=headers
            )
            return response.raise_for_status().content


@contextmanager
def half_made() -> Iterator[None]:
    """Call unknown what fails once the tenancy is there: it must not count as not created."""
    try:
        yield
    except VendorError as error:
        raise UnknownOutcome(f"half made: {error}") from error


def needed(value: str | None, name: str) -> str:
    """Give a value of the row that this call cannot do without."""
    if not value:
        raise PermanentError(f"the tenancy has no {name}")
    return value


def key_ref(external_id: str) -> str:
    """Give the reference under which a tenancy's API key is kept."""
    return f"{external_id}.key"


def wishes(tenancy: Tenancy) -> OutreachParams:
    """Give what the workspace chose."""
    return OutreachParams.model_validate(dict(tenancy.params))


def one(external_id: str) -> str:
    """Give the path of one tenancy."""
    return f"/tenancies/{quote(external_id, safe='')}"


def external(shown: AcmeTenancy) -> External:
    """Show a tenancy to the worker."""
    return External(
        shown.id,
        key=shown.reference,
        owner=shown.owner,
        created_at=shown.created_at,
        details=dict(shown.details),
    )
