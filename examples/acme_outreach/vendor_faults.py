"""Faults of Acme's service, switched on at will, to see how an adapter bears them."""

import asyncio
from typing import Final, Literal

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class Fault(BaseModel):
    """How to misbehave: for the next `count` requests (None: until switched off)."""

    kind: Literal[
        "rate_limited",  # 429, Retry-After `seconds`
        "outage",  # 503, Retry-After `seconds`
        "unauthorized",  # 401, as after the token was revoked
        "forbidden",  # 403, as after a right was taken away
        "error_before",  # 500, nothing done
        "error_after",  # 500, all the same done
        "drop_before",  # the connection is lost, nothing done
        "drop_after",  # the connection is lost, all the same done
        "slow",  # done at once, answered `seconds` later
        "hang",  # nothing done, 500 `seconds` later
    ]
    count: int | None = Field(default=None, ge=1)
    seconds: float = Field(default=1.0, ge=0, le=3600)
    method: str | None = None
    """Only requests with this method."""


STATUS: Final = {"rate_limited": 429, "outage": 503, "unauthorized": 401, "forbidden": 403}


class Switch:
    """The fault that is switched on, if one is."""

    def __init__(self, fault: Fault | None) -> None:
        self._fault = fault

    def set(self, fault: Fault | None) -> None:
        """Switch a fault on, in place of any other, or off."""
        self._fault = fault

    @property
    def left(self) -> Fault | None:
        """The fault that the next requests will meet."""
        return self._fault

    def due(self, request: Request) -> Fault | None:
        """Give the fault this request meets, and count it."""
        if request.url.path == "/faults":
            return None
        if "fault" in request.query_params:
            query = request.query_params
            return Fault.model_validate(
                {"kind": query["fault"], "seconds": query.get("seconds", "1")}
            )
        fault = self._fault
        if fault is None or fault.method not in (None, request.method):
            return None
        if fault.count is not None:
            left = fault.count - 1
            self._fault = fault.model_copy(update={"count": left}) if left else None
        return fault


class Faults:
    """ASGI middleware that misbehaves as the switch says."""

    def __init__(self, app: ASGIApp, switch: Switch) -> None:
        self._app = app
        self._switch = switch

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request, well or badly."""
        try:
            fault = self._switch.due(Request(scope)) if scope["type"] == "http" else None
        except ValidationError:
            await JSONResponse({"error": "no_such_fault"}, 422)(scope, receive, send)
            return
        if fault is None:
            await self._app(scope, receive, send)
        else:
            await self._misbehave(fault, scope, receive, send)

    async def _misbehave(self, fault: Fault, scope: Scope, receive: Receive, send: Send) -> None:
        answer: list[Message] = []

        async def keep_back(message: Message) -> None:
            answer.append(message)

        if fault.kind in ("error_after", "drop_after", "slow"):
            await self._app(scope, receive, keep_back)
        if fault.kind in ("slow", "hang"):
            await asyncio.sleep(fault.seconds)
        if fault.kind == "slow":
            for message in answer:
                await send(message)
        elif fault.kind in ("drop_before", "drop_after"):
            # The server closes the connection of an answer that is left unfinished.
            length = [(b"content-length", b"1")]
            await send({"type": "http.response.start", "status": 200, "headers": length})
        else:
            await refusal(fault)(scope, receive, send)


def refusal(fault: Fault) -> Response:
    """Give the answer of a fault that is one."""
    status = STATUS.get(fault.kind, 500)
    headers = {"Retry-After": f"{fault.seconds:g}"} if status in (429, 503) else None
    return JSONResponse({"error": fault.kind}, status, headers)
