"""What is shown of rows."""

import pytest

from nimble_lifecycle.reconciler.tables import needs_person, print_needed, print_table
from nimble_lifecycle.store.standing import Notice

ROW = {
    "tenant_id": "t",
    "workspace_id": "ws",
    "incarnation": 2,
    "reason": "Rejected",
    "message": None,
    "settle": "nimble-reconcile retry 1",
}


def test_a_person_is_needed_where_a_command_settles_it() -> None:
    assert needs_person(ROW)
    assert not needs_person({**ROW, "settle": None})


def test_what_needs_a_person_is_printed_with_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    halted = Notice("acme", "the credential is refused", None)
    print_needed([halted], [ROW, {**ROW, "settle": None}])
    assert capsys.readouterr().out.splitlines() == [
        "",
        "Needs a person:",
        "  the credential is refused",
        "  t/ws #2: Rejected",
        "      nimble-reconcile retry 1",
    ]


def test_where_nothing_needs_a_person_nothing_is_printed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    print_needed([], [{**ROW, "settle": None}])
    assert capsys.readouterr().out == ""


def test_a_table_shows_whole_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {**ROW, "kind": "acme", "phase": "pending", "external_id": None, "message": "m"}
    print_table([{**shown, "due_at": "2030-01-01T12:00:00.123456+00:00"}], "a database")
    assert "2030-01-01T12:00:00+00:00" in capsys.readouterr().out


def test_a_row_is_one_line_where_it_goes_to_a_file(capsys: pytest.CaptureFixture[str]) -> None:
    shown = {
        **ROW,
        "kind": "acme",
        "phase": "stalled",
        "external_id": None,
        "due_at": None,
        "message": "the vendor said no " * 100,
    }
    print_table([shown, shown], "a database")
    assert len(capsys.readouterr().out.splitlines()) == 4
