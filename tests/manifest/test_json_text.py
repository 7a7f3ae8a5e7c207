"""Edits change one member and no other character."""

import json
from itertools import takewhile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nimble_lifecycle.manifest.json_text import loaded, remove, set_value

KEYS = st.sampled_from(["_meta", "host", "lifecycle", "a", 'q"uote', "é"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)
# Objects only, along the path that is edited.
DOCUMENTS = st.fixed_dictionaries(
    {"first": VALUES},
    optional={
        "_meta": st.fixed_dictionaries(
            {}, optional={"host": st.dictionaries(KEYS, VALUES), "other": VALUES}
        ),
        "last": VALUES,
    },
)
LAYOUTS = st.sampled_from(
    [
        {"indent": 2},
        {"indent": 4, "ensure_ascii": False},
        {"indent": "\t"},
        {"indent": 0},
        {},
        {"separators": (",", ":")},
    ]
)
PATH = ("_meta", "host", "on_ready")
PLACES = st.sampled_from([(), ("servers", 0), ("servers", 2)])


def shared_start(one: str, other: str) -> int:
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return len(list(same))


@settings(deadline=None)
@given(DOCUMENTS, LAYOUTS, st.sampled_from(["\n", "\r\n"]), st.sampled_from(["", "\n", "\n\n"]))
def test_a_set_value_is_there_and_everything_else_is_as_before(document, layout, newline, end):
    text = (json.dumps(document, **layout) + end).replace("\n", newline)
    changed = set_value(text, PATH, "tool")

    document.setdefault("_meta", {}).setdefault("host", {})["on_ready"] = "tool"
    assert json.loads(changed) == document
    assert list(json.loads(changed)) == list(document)
    assert changed.count("\n") == changed.count(newline)
    assert set_value(changed, PATH, "tool") == changed


def placed(document: dict, place: tuple[str | int, ...]) -> object:
    """Give a document that has another one at a place, among others."""
    if not place:
        return document
    servers = [1, [], {}]
    servers[place[1]] = document
    return {"a": {}, "servers": servers}


@settings(deadline=None)
@given(DOCUMENTS, LAYOUTS, PLACES)
def test_a_new_member_is_one_insertion_that_can_be_taken_out_again(document, layout, place):
    document.get("_meta", {}).get("host", {}).pop("on_ready", None)
    whole = placed(document, place)
    text = json.dumps(whole, **layout)
    changed = set_value(text, PATH, "tool", place)

    assert shared_start(text, changed) + shared_start(text[::-1], changed[::-1]) >= len(text)

    document.setdefault("_meta", {}).setdefault("host", {})
    assert json.loads(remove(changed, PATH, place)) == whole


def test_what_a_parser_would_rewrite_stays_as_it_was_written():
    text = '{\n  "n": 1.0e5, "u": "\\u00e9é",\n  "list": [1,2,\n 3],"x" : {"y":1} }'
    assert set_value(text, ("x", "y"), "z") == text.replace('"y":1', '"y":"z"')


def test_a_byte_order_mark_is_read_over_and_stays():
    text = set_value('\ufeff{\n\t"a": 1\n}', ("m", "k"), "v")
    assert text == '\ufeff{\n\t"a": 1,\n\t"m": {\n\t\t"k": "v"\n\t}\n}'
    assert loaded(text) == {"a": 1, "m": {"k": "v"}}
    assert remove(text, ("m",)) == '\ufeff{\n\t"a": 1\n}'


def test_of_doubled_keys_the_one_that_parsers_see_is_set():
    assert set_value('{"a": 1, "a": 2}', ("a",), "é") == '{"a": 1, "a": "é"}'


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ('{\n  "a": 1\n}\n', '{\n  "a": 1,\n  "m": {\n    "k": "v"\n  }\n}\n'),
        ('{\n\t"m": {}\n}', '{\n\t"m": {\n\t\t"k": "v"\n\t}\n}'),
        ('{\n  "m": { "a": 1 }\n}', '{\n  "m": { "a": 1, "k": "v" }\n}'),
        ('{"a": 1}', '{"a": 1, "m": {"k": "v"}}'),
        ("{}", '{\n  "m": {\n    "k": "v"\n  }\n}'),
    ],
)
def test_a_new_member_is_laid_out_like_its_surroundings(text, changed):
    assert set_value(text, ("m", "k"), "v") == changed


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ('{"m": 1}', "{}"),
        ('{\n  "m": 1,\n  "b": 2\n}', '{\n  "b": 2\n}'),
        ('{\n  "a": 1,\n  "m": 1\n}', '{\n  "a": 1\n}'),
        ('{"a": 1, "m": [1, 2], "b": 3}', '{"a": 1, "b": 3}'),
    ],
)
def test_a_removed_member_takes_its_comma_with_it(text, changed):
    assert remove(text, ("m",)) == changed
