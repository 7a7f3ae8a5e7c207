"""Each promise of the guarantees names tests; a promise whose test is gone is no promise."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "guarantees.md").read_text()
NAMED = sorted(set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", PAGE)))


@cache
def functions_of(path: str) -> set[str]:
    tree = ast.parse((ROOT / path).read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(tree) if isinstance(node, functions)}


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_the_proof_of_a_promise_exists(path: str, name: str) -> None:
    assert name in functions_of(path)


def test_every_promise_names_a_proof() -> None:
    tables = PAGE.partition("## Exactly one")[2].partition("## What is not promised")[0]
    rows = [line for line in tables.splitlines() if re.match(r"\| (?!promise|-)", line)]
    assert len(rows) > 30
    assert [row for row in rows if "::" not in row] == []
