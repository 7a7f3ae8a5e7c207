"""Params as JSON: what pydantic gives, with what it has of sets in order."""

import json
from collections import deque
from dataclasses import dataclass

import pytest
from pydantic import BaseModel, ConfigDict, RootModel, field_serializer, model_serializer

from nimble_lifecycle.core.params import json_of

LETTERS = frozenset("qwertzuiopasdfghjkl")


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    letters: frozenset[str] = LETTERS


@dataclass(frozen=True)
class Point:
    x: int


class Words(RootModel[set[str]]): ...


class Plan(BaseModel):
    models: set[Frozen] = {Frozen()}
    points: set[Point] = {Point(2), Point(1)}
    nested: frozenset[frozenset[str]] = frozenset({LETTERS, frozenset("ab")})
    by_name: dict[int, set[str]] = {1: set(LETTERS)}
    listed: deque[set[str]] = deque([set(LETTERS)])
    words: Words = Words(set(LETTERS))
    order: list[str] = ["b", "a"]


def test_sets_are_in_order_wherever_they_are() -> None:
    assert json_of(Plan()) == {
        "models": [{"letters": sorted(LETTERS)}],
        "points": [{"x": 1}, {"x": 2}],
        "nested": [["a", "b"], sorted(LETTERS)],
        "by_name": {"1": sorted(LETTERS)},
        "listed": [sorted(LETTERS)],
        "words": sorted(LETTERS),
        "order": ["b", "a"],
    }


class Chosen(BaseModel):
    levels: set[str] = {"low", "mid", "high"}

    @field_serializer("levels")
    def _levels(self, _levels: set[str]) -> list[str]:
        return ["high", "mid", "low"]


class Whole(BaseModel):
    a: set[str] = {"x", "y"}
    b: list[str] = ["p", "q"]

    @model_serializer
    def _whole(self) -> dict[str, list[str]]:
        return {"b": ["z", "a"], "a": ["y", "x"]}


@pytest.mark.parametrize("model", [Chosen(), Whole()])
def test_what_an_authors_serializer_gives_stays_as_it_is(model: BaseModel) -> None:
    assert json.dumps(json_of(model)) == json.dumps(model.model_dump(mode="json"))
