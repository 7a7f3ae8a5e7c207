"""Acme's HTTP service, the third party of the example.

Run it as `python vendor_api.py --port N --database FILE`; the first line it prints is its URL.

With the admin token (`ACME_ADMIN_TOKEN`, as a bearer token):

    POST   /tenancies              name, owner, reference; Idempotency-Key, remembered for 24 hours
    GET    /tenancies              ?owner= ?reference= ?limit= ?after=, in pages
    GET    /tenancies/{id}         PATCH (plan, from_name) and DELETE likewise
    POST   /tenancies/{id}/key     a new API key, shown this once; the one before stops working
    GET    /tenancies/{id}/mail    what was sent
    GET    /operations/{id}        running or done; provisioning takes ACME_PROVISIONING_SECONDS
    PUT    /faults                 misbehave from now on (see `Fault`); DELETE ends it, GET shows it

With a tenancy's own API key: POST /mail (to, subject, body) sends, GET /mail lists.

A repeated key answers with the tenancy it made. With another body it is 422, after the tenancy was
deleted 410; a name that another key took is 409. Faults also come from ACME_FAULT (the same JSON)
and, for one request, from `?fault=KIND&seconds=N`.
"""

import json
import secrets
import socket
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TypeVar

import cyclopts
import uvicorn
from pydantic import BaseModel, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from vendor_faults import Fault, Faults, Switch
from vendor_ledger import Change, Ledger, NewMail, NewTenancy, Page, public, sender

Model = TypeVar("Model", bound=BaseModel)


class Settings(BaseSettings):
    """What the service reads from its environment, `ACME_*`."""

    model_config = SettingsConfigDict(env_prefix="ACME_", extra="ignore", hide_input_in_errors=True)

    admin_token: SecretStr = SecretStr("")
    provisioning_seconds: float = Field(default=0.5, ge=0)
    fault: Fault | None = None


class Api:
    """The endpoints; each checks who asks first."""

    def __init__(self, ledger: Ledger, settings: Settings, switch: Switch) -> None:
        self._ledger = ledger
        self._token = settings.admin_token.get_secret_value().encode()
        self._seconds = settings.provisioning_seconds
        self._switch = switch

    def routes(self) -> list[Route]:
        """Give Starlette's routes."""
        return [
            Route("/tenancies", self.create, methods=["POST"]),
            Route("/tenancies", self.listing, methods=["GET"]),
            Route("/tenancies/{id}", self.show, methods=["GET"]),
            Route("/tenancies/{id}", self.change, methods=["PATCH"]),
            Route("/tenancies/{id}", self.delete, methods=["DELETE"]),
            Route("/tenancies/{id}/key", self.key, methods=["POST"]),
            Route("/tenancies/{id}/mail", self.sent, methods=["GET"]),
            Route("/operations/{id}", self.operation, methods=["GET"]),
            Route("/mail", self.send, methods=["POST"]),
            Route("/mail", self.own_mail, methods=["GET"]),
            Route("/faults", self.faults, methods=["GET", "PUT", "DELETE"]),
        ]

    async def create(self, request: Request) -> Response:
        """POST /tenancies."""
        self._admin(request)
        key = request.headers.get("Idempotency-Key", "")
        if not key:
            raise HTTPException(400, "idempotency_key_missing")
        new = await body(request, NewTenancy)
        tenancy, made = self._ledger.create(new, key, self._seconds)
        shown = public(tenancy)
        if shown["state"] == "provisioning":
            return JSONResponse(shown, 202)
        return JSONResponse(shown, 201 if made else 200)

    async def listing(self, request: Request) -> Response:
        """GET /tenancies."""
        self._admin(request)
        page = checked(Page, dict(request.query_params))
        rows = self._ledger.page(page)
        more, rows = len(rows) > page.limit, rows[: page.limit]
        return JSONResponse(
            {
                "tenancies": [public(row) for row in rows],
                "next": rows[-1]["number"] if more else None,
            }
        )

    async def show(self, request: Request) -> Response:
        """GET /tenancies/{id}."""
        self._admin(request)
        return JSONResponse(public(self._ledger.tenancy(request.path_params["id"])))

    async def change(self, request: Request) -> Response:
        """PATCH /tenancies/{id}."""
        self._admin(request)
        change = await body(request, Change)
        return JSONResponse(public(self._ledger.change(request.path_params["id"], change)))

    async def delete(self, request: Request) -> Response:
        """DELETE /tenancies/{id}."""
        self._admin(request)
        self._ledger.delete(request.path_params["id"])
        return Response(status_code=204)

    async def key(self, request: Request) -> Response:
        """POST /tenancies/{id}/key."""
        self._admin(request)
        return JSONResponse({"api_key": self._ledger.issue_key(request.path_params["id"])}, 201)

    async def sent(self, request: Request) -> Response:
        """GET /tenancies/{id}/mail."""
        self._admin(request)
        tenancy = self._ledger.tenancy(request.path_params["id"])
        return JSONResponse({"mail": [dict(row) for row in self._ledger.mail(tenancy["id"])]})

    async def operation(self, request: Request) -> Response:
        """GET /operations/{id}."""
        self._admin(request)
        shown = public(self._ledger.operation(request.path_params["id"]))
        state = "running" if shown["state"] == "provisioning" else "done"
        return JSONResponse({"id": shown["operation_id"], "state": state, "tenancy": shown})

    async def send(self, request: Request) -> Response:
        """POST /mail."""
        tenancy = self._ledger.owner_of(bearer(request))
        number = self._ledger.send(tenancy["id"], await body(request, NewMail))
        return JSONResponse({"id": number, "from": sender(tenancy)}, 201)

    async def own_mail(self, request: Request) -> Response:
        """GET /mail."""
        tenancy = self._ledger.owner_of(bearer(request))
        return JSONResponse({"mail": [dict(row) for row in self._ledger.mail(tenancy["id"])]})

    async def faults(self, request: Request) -> Response:
        """GET, PUT and DELETE /faults."""
        self._admin(request)
        if request.method == "GET":
            left = self._switch.left
            return JSONResponse(left and left.model_dump())
        self._switch.set(await body(request, Fault) if request.method == "PUT" else None)
        return Response(status_code=204)

    def _admin(self, request: Request) -> None:
        if not secrets.compare_digest(bearer(request).encode(), self._token):
            raise HTTPException(401, "wrong_token")


def bearer(request: Request) -> str:
    """Give the bearer token of a request, empty where there is none."""
    scheme, _, token = request.headers.get("Authorization", "").partition(" ")
    return token if scheme.lower() == "bearer" else ""


async def body(request: Request, model: type[Model]) -> Model:
    """Read a JSON body, or 422 with the names of what is wrong."""
    try:
        return checked(model, json.loads(await request.body()))
    except ValueError:
        raise HTTPException(422, "not_json") from None


def checked(model: type[Model], value: object) -> Model:
    """Validate, or 422 with the names of what is wrong."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        wrong = sorted({".".join(map(str, problem["loc"])) for problem in error.errors()})
        raise HTTPException(422, f"wrong: {', '.join(wrong)}") from None


async def said(_: Request, error: Exception) -> Response:
    """Answer a refused request with its word."""
    assert isinstance(error, HTTPException)  # noqa: S101  # what it is registered for
    return JSONResponse({"error": error.detail}, error.status_code)


async def unheard(_: Request, _error: Exception) -> Response:
    """Answer a caller that went away before it had asked."""
    return Response(status_code=499)


def application(database: Path, settings: Settings) -> Starlette:
    """Build the service over one database file."""
    ledger, switch = Ledger(database), Switch(settings.fault)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        ledger.close()

    return Starlette(
        routes=Api(ledger, settings, switch).routes(),
        middleware=[Middleware(Faults, switch=switch)],
        exception_handlers={HTTPException: said, ClientDisconnect: unheard},
        lifespan=lifespan,
    )


def main(*, port: int = 8800, database: Path = Path("acme.db")) -> None:
    """Serve Acme's API on the loopback interface until told to stop; port 0 takes a free one."""
    settings = Settings()
    if not settings.admin_token.get_secret_value():
        sys.exit("ACME_ADMIN_TOKEN is not set: give the service its admin token")
    app = application(database, settings)
    with socket.create_server(("127.0.0.1", port)) as listening:
        # asyncio sets this only on sockets it made itself; without it each answer takes 40 ms.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sys.stdout.write(f"http://127.0.0.1:{listening.getsockname()[1]}\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
        uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    cyclopts.run(main)
