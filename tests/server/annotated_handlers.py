"""Handlers whose annotations are texts, two of them importable by type checkers only."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastmcp import Context

if TYPE_CHECKING:
    from nimble_lifecycle import Reason, Tenancy


def ready(tenancy: Tenancy, reason: Reason, ctx: Context) -> Missing:  # noqa: F821
    """Say what came."""
    return f"{reason} {tenancy.workspace_id} {ctx.fastmcp.name}"
