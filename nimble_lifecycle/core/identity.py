"""Which workspace a call belongs to, from sources a caller cannot forge.

Never an argument, never `_meta`: the verified access token, then the headers of a trusted edge,
then, where there is no HTTP request, the process's own NB_WORKSPACE_ID. Two sources that disagree,
or one that is there and says nothing, are an error and never a reason to ask the next.
"""

import hmac
import ipaddress
import os
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from starlette.requests import Request

from nimble_lifecycle.core.call import Call
from nimble_lifecycle.errors import ConfigurationError, WorkspaceUnknown
from nimble_lifecycle.protocol import Workspace

EdgeTrust: TypeAlias = "bool | Sequence[str] | Mapping[str, str]"
"""Whose `x-workspace-id` counts: nobody's, loopback peers' (`True`), peers' in these networks, or
that of requests which carry these secret headers (name to value). A peer's address that the request
itself names in a forwarding header is not trusted: the HTTP server may have taken it from there."""

WORKSPACE_HEADER = "x-workspace-id"
TENANT_HEADER = "x-tenant-id"
PROCESS_VARIABLE = "NB_WORKSPACE_ID"

_NO_HEADER: Final = f"no {WORKSPACE_HEADER}"
_NOBODYS: Final = "not trusted: trust_edge_headers of Lifecycle is not set"

_Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
_FORWARDING: Final = ("x-forwarded-for", "forwarded", "x-real-ip")
_AROUND_ADDRESSES: Final = re.compile(r"""[\s,;="'\[\]]+""")
_LONGEST_FORWARDING: Final = 4096  # characters; looking through more would hold up other calls


class Identity:
    """Reads the workspace of a call."""

    def __init__(self, claims: Sequence[str], trust_edge_headers: EdgeTrust) -> None:
        if isinstance(claims, str) or len(claims) not in (1, 2) or not all(claims):
            raise ConfigurationError(
                "claims must be the names of the workspace claim and, where there is one, of the"
                ' tenant claim: ("workspace_id", "tenant_id")'
            )
        self._workspace_claim = claims[0]
        self._tenant_claim = claims[1] if len(claims) > 1 else None
        self._trusts = _edge_trust(trust_edge_headers)
        self._untrusted = _NOBODYS if trust_edge_headers is False else "not trusted from this peer"

    def workspace(self, call: Call) -> Workspace:
        """Give the workspace of a call; raises `WorkspaceUnknown`."""
        request = call.request
        claimed, token_says = self._from_token(call.claims)
        edge, edge_says = self._from_edge(request)
        found = _agreed(claimed, edge)
        if found is not None:
            return found
        process, process_says = _from_process(request)
        if process is not None:
            return process
        raise WorkspaceUnknown(
            "No trusted source names the workspace of this call. Looked at: the access token"
            f" ({token_says}), the edge headers ({edge_says}), {PROCESS_VARIABLE} ({process_says})."
        )

    def _from_token(self, claims: Mapping[str, object] | None) -> tuple[Workspace | None, str]:
        if claims is None:
            return None, "there is none"
        workspace_id = _claim(claims, self._workspace_claim)
        if workspace_id is None:
            raise WorkspaceUnknown(f"The access token has no claim {self._workspace_claim!r}.")
        tenant_id = _claim(claims, self._tenant_claim) if self._tenant_claim else None
        return _workspace("access token", workspace_id, tenant_id or ""), ""

    def _from_edge(self, request: Request | None) -> tuple[Workspace | None, str]:
        if request is None:
            return None, "no HTTP request"
        if not self._trusts(request):
            there = WORKSPACE_HEADER in request.headers or TENANT_HEADER in request.headers
            return None, self._untrusted if there else _NO_HEADER
        workspace_id = _single_header(request, WORKSPACE_HEADER)
        tenant_id = _single_header(request, TENANT_HEADER)
        if workspace_id is not None:
            return _workspace("edge headers", workspace_id, tenant_id or ""), ""
        if tenant_id is not None:
            raise WorkspaceUnknown(
                f"The edge sent {TENANT_HEADER} without {WORKSPACE_HEADER}; it must send both."
            )
        return None, _NO_HEADER


def workspace_of_process() -> str | None:
    """Give the workspace of a process that serves just one, as older hosts start it (stdio)."""
    return os.environ.get(PROCESS_VARIABLE)


def _from_process(request: Request | None) -> tuple[Workspace | None, str]:
    if request is not None:
        return None, "not for calls over HTTP"
    workspace_id = workspace_of_process()
    if workspace_id is None:
        return None, "not set"
    return _workspace(PROCESS_VARIABLE, workspace_id, ""), ""


def _agreed(claimed: Workspace | None, edge: Workspace | None) -> Workspace | None:
    if claimed is None or edge is None:
        return claimed or edge
    tenants = {claimed.tenant_id, edge.tenant_id} - {""}
    if claimed.workspace_id != edge.workspace_id or len(tenants) > 1:
        raise WorkspaceUnknown("The access token and the edge headers name different workspaces.")
    return Workspace(claimed.workspace_id, "".join(tenants))


def _workspace(source: str, workspace_id: str, tenant_id: str) -> Workspace:
    try:
        return Workspace(workspace_id, tenant_id)
    except ValueError as error:
        raise WorkspaceUnknown(f"The {source} cannot be used: {error}.") from None


def _claim(claims: Mapping[str, object], name: str) -> str | None:
    value = claims.get(name)
    if value is not None and not isinstance(value, str):
        raise WorkspaceUnknown(f"The claim {name!r} of the access token is not a text.")
    return value


def _single_header(request: Request, name: str) -> str | None:
    values = request.headers.getlist(name)
    if len(values) > 1:
        raise WorkspaceUnknown(f"The request has {len(values)} {name} headers; one is allowed.")
    return values[0] if values else None


def _edge_trust(setting: EdgeTrust) -> Callable[[Request], bool]:
    if isinstance(setting, Mapping):
        return _secret_headers(setting)
    if isinstance(setting, bool):
        return _from_loopback if setting else lambda _request: False
    if isinstance(setting, str) or not isinstance(setting, Sequence):
        raise ConfigurationError('trust_edge_headers takes a list of networks: ["10.0.0.0/8"]')
    return _networks(setting)


def _secret_headers(secrets: Mapping[str, str]) -> Callable[[Request], bool]:
    if not secrets or not all(name and value for name, value in secrets.items()):
        raise ConfigurationError("trust_edge_headers needs a secret header's name and value")
    for name, value in secrets.items():
        if not value.isascii() or value != value.strip():
            raise ConfigurationError(
                f"the secret of {name!r} in trust_edge_headers can never arrive: it has white space"
                " around it, as a line of a file has, or is not ASCII. Strip it or choose another."
            )

    def trusts(request: Request) -> bool:
        return all(_has_secret(request, name, value) for name, value in secrets.items())

    return trusts


def _has_secret(request: Request, name: str, value: str) -> bool:
    values = request.headers.getlist(name)
    return len(values) == 1 and hmac.compare_digest(values[0].encode(), value.encode())


def _networks(setting: Sequence[str]) -> Callable[[Request], bool]:
    try:
        networks = [ipaddress.ip_network(network) for network in setting]
    except ValueError as error:
        raise ConfigurationError(f"trust_edge_headers: {error}") from None

    def trusts(request: Request) -> bool:
        peer = _peer(request)
        return peer is not None and any(peer in network for network in networks)

    return trusts


def _from_loopback(request: Request) -> bool:
    peer = _peer(request)
    return peer is not None and peer.is_loopback


def _peer(request: Request) -> _Address | None:
    """Give the address the request came from, or None where that may be hearsay.

    An edge does not write its own address into the headers it sends, but HTTP servers such as
    Uvicorn report what they find there as the peer.
    """
    peer = _address(request.client.host if request.client else "")
    said = ",".join(value for name in _FORWARDING for value in request.headers.getlist(name))
    if len(said) > _LONGEST_FORWARDING or peer in _named_in(said):
        return None
    return peer


def _named_in(said: str) -> set[_Address | None]:
    texts = set(_AROUND_ADDRESSES.split(said))
    return {_address(text) for text in texts | {_without_port(text) for text in texts}}


def _without_port(text: str) -> str:
    return text.rpartition(":")[0]


def _address(text: str) -> _Address | None:
    bare = text.partition("%")[0]  # without an IPv6 zone, which may be any text
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address
