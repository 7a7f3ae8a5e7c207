"""Params as JSON, the same for the same model in every process."""

import json
from collections.abc import Mapping
from collections.abc import Set as AnySet

from pydantic import BaseModel

from nimble_lifecycle.protocol import Json


def json_of(model: BaseModel) -> dict[str, Json]:
    """Give a model as a JSON object, what it has of sets in order.

    Python orders a set anew in every process, and params in another order would be other params.
    """
    shown: dict[str, Json] = model.model_dump(mode="json")
    ordered = _ordered(model.model_dump(), shown)
    return ordered if isinstance(ordered, dict) else shown


def _ordered(value: object, shown: Json) -> Json:
    """Put in order whatever of `shown` is a set in `value`; what looks another way there stays."""
    match value, shown:
        case Mapping(), dict() if len(value) == len(shown):
            pairs = zip(value.values(), shown.items(), strict=True)
            return {name: _ordered(inner, item) for inner, (name, item) in pairs}
        case AnySet(), list():
            return sorted(shown, key=lambda item: json.dumps(item, sort_keys=True))
        case ((list() | tuple()), list()) if len(value) == len(shown):
            return [_ordered(*pair) for pair in zip(value, shown, strict=True)]
        case _:
            return shown
