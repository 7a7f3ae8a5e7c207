"""YAML is changed where it must be and nowhere else; comments stay."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.manifest.yaml_text import loaded, remove, set_value

ENTRY = """\
# The catalog entry of Acme
name: io.acme/outreach   # as registered
version: "1.0.0"
_meta:
  dev.mpak/registry:
    score: 1
  ai.nimblebrain/host:
    host_version: "1.5"  # never lower it
    placements:
      - slot: sidebar
        label: 'Outreach'

packages:  # what is installed
  - registryType: pypi
    identifier: acme-outreach
"""
HOST = ("_meta", "ai.nimblebrain/host")
READY = (*HOST, "lifecycle", "on_ready")


def added(before: str, after: str) -> list[str]:
    """Give the lines that are new; every old one must still be there, in order."""
    rest = iter(after.splitlines(keepends=True))
    new = []
    for line in before.splitlines(keepends=True):
        for candidate in rest:
            if candidate == line:
                break
            new.append(candidate)
        else:
            pytest.fail(f"lost: {line!r}")
    return [*new, *rest]


def test_a_new_member_is_lines_of_its_own_after_its_siblings():
    text = set_value(ENTRY, READY, "workspace_ready")
    assert added(ENTRY, text) == ["    lifecycle:\n", "      on_ready: workspace_ready\n"]
    assert loaded(text)["_meta"]["ai.nimblebrain/host"]["lifecycle"] == {
        "on_ready": "workspace_ready"
    }
    assert remove(text, (*HOST, "lifecycle")) == ENTRY


def test_a_value_is_replaced_and_the_comment_behind_it_stays():
    text = set_value(ENTRY, (*HOST, "host_version"), "1.6")
    assert 'host_version: "1.6"  # never lower it\n' in text
    assert len(added(ENTRY.replace("1.5", "1.6"), text)) == 0


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("name: a\n", 'name: a\n_meta:\n  ai.nimblebrain/host:\n    v: "1"\n'),
        ("name: a", 'name: a\n_meta:\n  ai.nimblebrain/host:\n    v: "1"'),
        ("name: a\r\n", 'name: a\r\n_meta:\r\n  ai.nimblebrain/host:\r\n    v: "1"\r\n'),
        ("_meta:\nname: a\n", '_meta:\n  ai.nimblebrain/host:\n    v: "1"\nname: a\n'),
        ("_meta: {}  # none\n", '_meta:  # none\n  ai.nimblebrain/host:\n    v: "1"\n'),
        ("_meta: ~\n", '_meta:\n  ai.nimblebrain/host:\n    v: "1"\n'),
        ("_meta: {a: {}}\n", '_meta: {a: {}, "ai.nimblebrain/host": {v: "1"}}\n'),
        ('{"name": "a"}\n', '{"name": "a", _meta: {"ai.nimblebrain/host": {v: "1"}}}\n'),
        (
            "_meta:\n    ai.nimblebrain/host:\n        name: >\n            folded\n",
            "_meta:\n    ai.nimblebrain/host:\n        name: >\n            folded\n"
            '        v: "1"\n',
        ),
    ],
)
def test_a_new_member_is_laid_out_like_its_surroundings(text, changed):
    assert set_value(text, (*HOST, "v"), "1").replace('"ai.nimblebrain/host"', HOST[1]) == (
        changed.replace('"ai.nimblebrain/host"', HOST[1])
    )


@pytest.mark.parametrize(
    ("text", "changed"),
    [
        ("a: 1\nb: 2  # two\nc: 3\n", "a: 1\nc: 3\n"),
        ("b: 2\n", ""),
        ("b: 2", ""),
        ("a: 1\nb: 2", "a: 1"),
        ("a: 1\r\nb: 2  # two", "a: 1"),
        ("a: |\n  one\nb: 2", "a: |\n  one"),
        ("b: |\n  two\n  lines\nc: 3\n", "c: 3\n"),
        ("{a: 1, b: 2}\n", "{a: 1}\n"),
        ("{b: 2, a: 1}\n", "{a: 1}\n"),
    ],
)
def test_a_removed_member_takes_its_line_or_its_comma_with_it(text, changed):
    assert remove(text, ("b",)) == changed


def test_what_was_added_at_the_end_of_a_file_goes_without_a_trace():
    for text in ("name: a", "name: a\n", "name: a\r\n"):
        assert remove(set_value(text, ("v",), "1"), ("v",)) == text


def test_an_alias_is_read_as_a_value_of_its_own():
    content = loaded("a: &a {b: [1]}\nc: *a\n")
    assert content == {"a": {"b": [1]}, "c": {"b": [1]}}
    assert content["a"] is not content["c"]
    assert content["a"]["b"] is not content["c"]["b"]


def test_a_mapping_that_loses_its_last_member_stays_a_mapping():
    assert remove("a:\n  b: 1\nc: 2\n", ("a", "b")) == "a: {}\nc: 2\n"
    assert remove("a: {b: 1}\n", ("a", "b")) == "a: {}\n"


def test_what_stands_behind_an_alias_is_not_changed_by_stealth():
    text = "base: &base\n  v: 1\n_meta:\n  ai.nimblebrain/host: *base\n"
    with pytest.raises(ConfigurationError, match="alias"):
        set_value(text, (*HOST, "v"), "1")


KEYS = st.sampled_from(["a", "b", "_meta", "ai.nimblebrain/host", "lifecycle", "on: off"])
LEAVES = st.one_of(st.integers(), st.text(max_size=8), st.none(), st.booleans())
TREES = st.recursive(
    LEAVES,
    lambda inner: st.one_of(st.dictionaries(KEYS, inner, max_size=3), st.lists(inner, max_size=2)),
    max_leaves=8,
)
HOSTS = st.dictionaries(KEYS, TREES, max_size=3)


@given(
    entry=st.dictionaries(KEYS, TREES, min_size=1, max_size=3),
    host=HOSTS,
    name=st.text(st.characters(codec="ascii", exclude_categories=["Cc"]), min_size=1, max_size=12),
    flow=st.sampled_from([None, True, False]),
    indent=st.sampled_from([2, 4]),
    place=st.sampled_from([(), ("servers", 1)]),
)
def test_a_set_value_is_there_and_everything_else_is_as_before(
    entry, host, name, flow, indent, place
):
    entry["_meta"] = {**(entry["_meta"] if isinstance(entry.get("_meta"), dict) else {})}
    entry["_meta"]["ai.nimblebrain/host"] = host
    if not isinstance(host.get("lifecycle"), dict):
        host.pop("lifecycle", None)
    whole = {"servers": [{"a": 1}, entry, "last"]} if place else entry
    text = yaml.safe_dump(whole, default_flow_style=flow, indent=indent, sort_keys=False)
    changed = set_value(text, READY, name, place)
    host.setdefault("lifecycle", {})["on_ready"] = name
    assert loaded(changed) == whole
    del host["lifecycle"]["on_ready"]
    assert loaded(remove(changed, READY, place)) == whole
