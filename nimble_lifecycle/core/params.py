"""Params as JSON, the same for the same model in every process."""

import json
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AnySet

from pydantic import BaseModel, PlainSerializer, RootModel, WrapSerializer

from nimble_lifecycle.protocol import Json


def json_of(model: BaseModel) -> dict[str, Json]:
    """Give a model as a JSON object, what it has of sets in order.

    Python orders a set anew in every process, and params in another order would be other params.
    What the author's own serializers give stays as it is.
    """
    shown: dict[str, Json] = model.model_dump(mode="json")
    ordered = _ordered(model, shown)
    return ordered if isinstance(ordered, dict) else shown


def _ordered(value: object, shown: Json) -> Json:
    """Put in order whatever of `shown` is a set in `value`, which it was made of in this order."""
    match value, shown:
        case RootModel(), _:
            return shown if _has_serializer(value) else _ordered(value.root, shown)
        case BaseModel(), dict():
            plain = _plain_fields(value)
            return {
                name: _ordered(getattr(value, name), item) if name in plain else item
                for name, item in shown.items()
            }
        case Mapping(), dict() if len(value) == len(shown):
            pairs = zip(value.values(), shown.items(), strict=True)
            return {name: _ordered(inner, item) for inner, (name, item) in pairs}
        case AnySet(), list() if len(value) == len(shown):
            items = [_ordered(*pair) for pair in zip(value, shown, strict=True)]
            return sorted(items, key=lambda item: json.dumps(item, sort_keys=True))
        case ((list() | tuple() | deque()), list()) if len(value) == len(shown):
            return [_ordered(*pair) for pair in zip(value, shown, strict=True)]
        case _:
            return shown


def _plain_fields(model: BaseModel) -> set[str]:
    """Name the fields that pydantic itself turns into JSON."""
    if _has_serializer(model):
        return set()
    own = (PlainSerializer, WrapSerializer)
    found = {
        name
        for name, field in type(model).model_fields.items()
        if not any(isinstance(each, own) for each in field.metadata)
    }
    serializers = type(model).__pydantic_decorators__.field_serializers.values()
    named = {name for each in serializers for name in each.info.fields}
    return set() if "*" in named else found - named


def _has_serializer(model: BaseModel) -> bool:
    return bool(type(model).__pydantic_decorators__.model_serializers)
