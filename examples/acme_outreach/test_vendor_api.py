import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest
from acme_process import ADMIN_TOKEN, Acme, serving

NEW = {"name": "ours-aaa", "owner": "ours", "reference": "ours-aaa"}


def create(acme: Acme, key: str = "key-1", **changed: str) -> httpx2.Response:
    headers = {"Idempotency-Key": acme.label + key}
    return acme.admin.post("/tenancies", json={**NEW, **changed}, headers=headers)


def with_key(acme: Acme, tenancy_id: str) -> dict[str, str]:
    answer = acme.admin.post(f"/tenancies/{tenancy_id}/key")
    assert answer.status_code == 201
    return {"Authorization": f"Bearer {answer.json()['api_key']}"}


def test_it_does_not_start_without_its_token(tmp_path: Path) -> None:
    program = Path(__file__).with_name("vendor_api.py")
    bare = {name: value for name, value in os.environ.items() if name != "ACME_ADMIN_TOKEN"}
    ended = subprocess.run(
        [sys.executable, program, "--port", "0", "--database", tmp_path / "acme.db"],
        env=bare,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 1
    assert "ACME_ADMIN_TOKEN" in ended.stderr


@pytest.mark.parametrize("header", ["", "Bearer wrong", "Bearer", f"Basic {ADMIN_TOKEN}"])
def test_nobody_gets_in_without_the_admin_token(acme: Acme, header: str) -> None:
    answer = acme.admin.post("/tenancies", json=NEW, headers={"Authorization": header})
    assert answer.status_code == 401
    assert acme.tenancies() == []


def test_a_tenancy_is_made_with_its_marks_and_shown(acme: Acme) -> None:
    made = create(acme)
    assert made.status_code == 201
    shown = made.json()
    assert shown.items() >= {**NEW, "state": "active", "plan": "starter"}.items()
    assert acme.admin.get(f"/tenancies/{shown['id']}").json() == shown


def test_the_same_key_gives_the_same_tenancy(acme: Acme) -> None:
    made, again = create(acme), create(acme)
    assert (made.status_code, again.status_code) == (201, 200)
    assert made.json() == again.json()
    assert len(acme.tenancies()) == 1


def test_the_same_key_with_another_body_is_refused(acme: Acme) -> None:
    create(acme)
    assert create(acme, name="other").status_code == 422
    assert len(acme.tenancies()) == 1


def test_a_name_that_another_key_took_is_a_conflict(acme: Acme) -> None:
    create(acme)
    taken = create(acme, "key-2", owner="theirs", reference="theirs-1")
    assert (taken.status_code, taken.json()) == (409, {"error": "name_taken"})
    assert [tenancy["owner"] for tenancy in acme.tenancies()] == ["ours"]


def test_the_key_of_a_deleted_tenancy_makes_no_new_one(acme: Acme) -> None:
    made = create(acme).json()
    acme.admin.delete(f"/tenancies/{made['id']}")
    assert create(acme).status_code == 410
    assert acme.tenancies() == []


def test_a_key_is_forgotten_after_a_day(acme: Acme) -> None:
    create(acme)
    books = sqlite3.connect(acme.database)
    with books:
        books.execute("UPDATE idempotency SET used_at = used_at - 24 * 3600 - 1")
    books.close()
    assert create(acme).status_code == 409  # no replay any more: the name is taken
    assert create(acme, name="ours-bbb").status_code == 201


def test_what_was_made_survives_a_restart(tmp_path: Path) -> None:
    with serving(tmp_path / "acme.db", ACME_PROVISIONING_SECONDS="0") as acme:
        made = create(acme).json()
    with serving(tmp_path / "acme.db", ACME_PROVISIONING_SECONDS="0") as acme:
        assert acme.tenancies() == [made]
        assert create(acme).json() == made


def test_provisioning_takes_its_time_and_then_is_done(slow_acme: Acme) -> None:
    made = create(slow_acme)
    shown = made.json()
    operation = f"/operations/{shown['operation_id']}"
    assert (made.status_code, shown["state"]) == (202, "provisioning")
    assert slow_acme.admin.get(operation).json()["state"] != "done"
    assert slow_acme.admin.post(f"/tenancies/{shown['id']}/key").status_code == 409
    slow_acme.finish()
    done = slow_acme.admin.get(operation).json()
    assert (done["state"], done["tenancy"]["id"]) == ("done", shown["id"])
    assert create(slow_acme).status_code == 200


def test_the_listing_comes_in_pages_and_filtered(acme: Acme) -> None:
    for number in range(5):
        mark = f"{'ours' if number % 2 else 'theirs'}-{number}"
        create(acme, mark, name=mark, reference=mark, owner=mark.partition("-")[0])
    first = acme.admin.get("/tenancies?limit=3").json()
    rest = acme.admin.get(f"/tenancies?limit=3&after={first['next']}").json()
    assert [len(first["tenancies"]), len(rest["tenancies"]), rest["next"]] == [3, 2, None]
    assert {tenancy["name"] for tenancy in acme.tenancies(owner="ours")} == {"ours-1", "ours-3"}
    assert [tenancy["name"] for tenancy in acme.tenancies(reference="ours-3")] == ["ours-3"]
    assert acme.tenancies(reference="ours") == []


def test_a_change_sets_only_what_it_names(acme: Acme) -> None:
    tenancy_id = create(acme).json()["id"]
    acme.admin.patch(f"/tenancies/{tenancy_id}", json={"from_name": "Ann"})
    changed = acme.admin.patch(f"/tenancies/{tenancy_id}", json={"plan": "growth"}).json()
    assert (changed["plan"], changed["from_name"]) == ("growth", "Ann")
    refused = acme.admin.patch(f"/tenancies/{tenancy_id}", json={"plan": "gold"})
    assert (refused.status_code, refused.json()) == (422, {"error": "wrong: plan"})


@pytest.mark.parametrize("content", [b"", b"nonsense", b"[]", b'{"name": ""}'])
def test_a_wrong_body_is_refused(acme: Acme, content: bytes) -> None:
    headers = {"Idempotency-Key": "key-1"}
    assert acme.admin.post("/tenancies", content=content, headers=headers).status_code == 422
    assert acme.admin.post("/tenancies", json=NEW).status_code == 400


def test_mail_is_sent_with_the_tenancys_own_key_only(acme: Acme) -> None:
    tenancy_id = create(acme).json()["id"]
    own = with_key(acme, tenancy_id)
    mail = {"to": "ann@example.com", "subject": "Hello", "body": "Hi"}
    assert acme.admin.post("/mail", json=mail).status_code == 401
    sent = acme.admin.post("/mail", json=mail, headers=own)
    assert sent.status_code == 201
    assert sent.json()["from"].startswith(tenancy_id)
    stored = acme.admin.get(f"/tenancies/{tenancy_id}/mail").json()["mail"]
    assert [(one["to"], one["subject"], one["body"]) for one in stored] == [tuple(mail.values())]
    assert acme.admin.get("/mail", headers=own).json()["mail"] == stored
    assert acme.admin.get("/tenancies", headers=own).status_code == 401


def test_a_rotated_key_replaces_the_one_before(acme: Acme) -> None:
    tenancy_id = create(acme).json()["id"]
    old, new = with_key(acme, tenancy_id), with_key(acme, tenancy_id)
    assert acme.admin.get("/mail", headers=old).status_code == 401
    assert acme.admin.get("/mail", headers=new).status_code == 200


def test_a_key_is_not_shown_a_second_time(acme: Acme) -> None:
    tenancy_id = create(acme).json()["id"]
    key = with_key(acme, tenancy_id)["Authorization"].removeprefix("Bearer ")
    assert key not in acme.admin.get(f"/tenancies/{tenancy_id}").text
    assert key not in acme.admin.get("/tenancies").text


def test_deleting_takes_key_and_mail_along(acme: Acme) -> None:
    tenancy_id = create(acme).json()["id"]
    own = with_key(acme, tenancy_id)
    mail = {"to": "ann@example.com", "subject": "Hello", "body": "Hi"}
    acme.admin.post("/mail", json=mail, headers=own).raise_for_status()
    assert acme.admin.delete(f"/tenancies/{tenancy_id}").status_code == 204
    books = sqlite3.connect(acme.database)
    left = books.execute("SELECT * FROM mail WHERE tenancy_id = ?", (tenancy_id,)).fetchall()
    books.close()
    assert left == []
    assert acme.admin.get("/mail", headers=own).status_code == 401
    for path in (f"/tenancies/{tenancy_id}", f"/tenancies/{tenancy_id}/mail"):
        assert acme.admin.get(path).status_code == 404
    assert acme.admin.delete(f"/tenancies/{tenancy_id}").status_code == 404
    assert acme.admin.get("/operations/nothing").status_code == 404


@pytest.mark.parametrize(
    ("kind", "status", "made"),
    [
        ("rate_limited", 429, 0),
        ("outage", 503, 0),
        ("unauthorized", 401, 0),
        ("forbidden", 403, 0),
        ("error_before", 500, 0),
        ("hang", 500, 0),
        ("error_after", 500, 1),
        ("slow", 201, 1),
    ],
)
def test_a_fault_answers_as_told(acme: Acme, kind: str, status: int, made: int) -> None:
    acme.misbehave(kind, count=1, seconds=0.01)
    answer = create(acme)
    assert answer.status_code == status
    assert ("Retry-After" in answer.headers) == (status in (429, 503))
    assert len(acme.tenancies()) == made


@pytest.mark.parametrize(("kind", "made"), [("drop_before", 0), ("drop_after", 1)])
def test_a_dropped_connection_is_lost_for_the_client(acme: Acme, kind: str, made: int) -> None:
    acme.misbehave(kind, count=1)
    # A system resets a connection that is closed with something unread, and ends any other.
    with pytest.raises((httpx2.RemoteProtocolError, httpx2.ReadError)):
        create(acme)
    assert len(acme.tenancies()) == made


def test_a_counted_fault_ends_by_itself_and_spares_other_methods(acme: Acme) -> None:
    acme.misbehave("error_before", count=2, method="POST")
    assert acme.admin.get("/tenancies").status_code == 200
    assert acme.misbehaving()
    assert [create(acme).status_code for _ in range(3)] == [500, 500, 201]
    assert not acme.misbehaving()


def test_an_outage_lasts_until_it_is_switched_off(acme: Acme) -> None:
    acme.misbehave("outage")
    assert {acme.admin.get("/tenancies").status_code for _ in range(5)} == {503}
    acme.behave()
    assert acme.admin.get("/tenancies").status_code == 200


def test_a_fault_can_be_asked_for_one_request(acme: Acme) -> None:
    assert acme.admin.get("/tenancies?fault=rate_limited&seconds=7").headers["Retry-After"] == "7"
    assert acme.admin.get("/tenancies?fault=nonsense").status_code == 422
    assert acme.admin.get("/tenancies").status_code == 200


def test_a_fault_can_come_from_the_environment(tmp_path: Path) -> None:
    with serving(tmp_path / "acme.db", ACME_FAULT='{"kind": "outage"}') as acme:
        assert acme.admin.get("/tenancies").status_code == 503


def test_only_the_admin_switches_faults(acme: Acme) -> None:
    stranger = {"Authorization": "Bearer wrong"}
    refused = acme.admin.put("/faults", json={"kind": "outage"}, headers=stranger)
    assert refused.status_code == 401
    assert acme.admin.put("/faults", json={"kind": "nonsense"}).status_code == 422
    assert acme.admin.get("/tenancies").status_code == 200
