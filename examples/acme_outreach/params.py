"""What a workspace may choose of its sending tenancy; the one thing both halves import."""

from typing import Literal

from pydantic import BaseModel, Field


class OutreachParams(BaseModel):
    """The wish the server records and the worker checks again before it acts on it."""

    plan: Literal["starter", "growth"] = "starter"
    from_name: str = Field(default="", max_length=100)
