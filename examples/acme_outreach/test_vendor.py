import asyncio
import os
import stat
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar
from uuid import uuid4

import pytest
from acme_process import ADMIN_TOKEN, PATIENCE, Acme
from pydantic import ValidationError
from vendor import AcmeVendor

from nimble_lifecycle.errors import (
    ConfigurationError,
    CredentialError,
    NameConflict,
    PermanentError,
    RateLimited,
    TemporaryError,
    Unavailable,
    UnknownOutcome,
    VendorError,
)
from nimble_lifecycle.protocol import Json, Phase, Tenancy
from nimble_lifecycle.reconciler import External, InProgress, Provisioned, Released

T = TypeVar("T")
OWNER = "abcdefgh23"
OLD_KEY = "acme_a-key-that-was-lost"


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    return tmp_path / "keys"


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch, keys: Path) -> pytest.MonkeyPatch:
    monkeypatch.setenv("ACME_ADMIN_TOKEN", ADMIN_TOKEN)
    monkeypatch.setenv("ACME_SECRETS_DIR", str(keys))
    monkeypatch.setenv("ACME_TIMEOUT", str(PATIENCE))
    return monkeypatch


@pytest.fixture
def acme(acme: Acme, environment: pytest.MonkeyPatch) -> Acme:
    environment.setenv("ACME_URL", acme.url)
    return acme


@pytest.fixture
def slow_acme(slow_acme: Acme, environment: pytest.MonkeyPatch) -> Acme:
    environment.setenv("ACME_URL", slow_acme.url)
    return slow_acme


def tenancy(acme: Acme, name: str = "aaaa", **params: Json) -> Tenancy:
    """Give the view of a row a worker has just claimed for a create."""
    mark = f"{OWNER}-{acme.label}{name}"
    return Tenancy(
        id=uuid4(),
        tenant_id="",
        workspace_id="ws_1",
        kind="acme-outreach",
        incarnation=1,
        phase=Phase.PROVISIONING,
        params=params,
        idempotency_key=mark,
        external_name=mark,
        first_seen_at=datetime.now(UTC),
    )


def run(step: Callable[[AcmeVendor], Awaitable[T]]) -> T:
    """Do one step as a worker process would that starts for it and ends after it."""

    async def process() -> T:
        async with AcmeVendor() as vendor:
            return await step(vendor)

    return asyncio.run(process())


def provisioned(row: Tenancy) -> Provisioned:
    outcome = run(lambda vendor: vendor.provision(row))
    assert isinstance(outcome, Provisioned)
    return outcome


def error_of(step: Callable[[AcmeVendor], Awaitable[object]]) -> type[VendorError]:
    with pytest.raises(VendorError) as caught:
        run(step)
    return type(caught.value)


def key_of(keys: Path, outcome: Provisioned) -> str:
    return (keys / str(outcome.details["key_ref"])).read_text()


def can_send(acme: Acme, key: str) -> bool:
    mail = {"to": "ann@example.com", "subject": "Hello", "body": "Hi"}
    answer = acme.admin.post("/mail", json=mail, headers={"Authorization": f"Bearer {key}"})
    return answer.status_code == 201


async def listed(vendor: AcmeVendor) -> list[External]:
    return [found async for found in vendor.inventory()]


@pytest.mark.parametrize("token", [None, "", " \n"])
def test_without_the_token_it_says_which_variable_is_missing(
    environment: pytest.MonkeyPatch, token: str | None
) -> None:
    environment.delenv("ACME_ADMIN_TOKEN")
    if token is not None:
        environment.setenv("ACME_ADMIN_TOKEN", token)
    with pytest.raises(ConfigurationError, match="ACME_ADMIN_TOKEN"):
        run(listed)


def test_a_token_read_from_a_file_may_end_with_a_newline(
    acme: Acme, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("ACME_ADMIN_TOKEN", f"{ADMIN_TOKEN}\n")
    assert run(listed) == []


def test_a_secrets_directory_open_to_others_is_refused(acme: Acme, keys: Path) -> None:
    keys.mkdir()
    keys.chmod(0o755)
    with pytest.raises(ConfigurationError, match="ACME_SECRETS_DIR"):
        run(listed)


def test_params_outside_the_model_are_refused() -> None:
    assert AcmeVendor.params_model is not None
    with pytest.raises(ValidationError):
        AcmeVendor.params_model.model_validate({"plan": "gold"})


def test_a_tenancy_is_made_with_its_marks_and_a_working_key(acme: Acme, keys: Path) -> None:
    row = tenancy(acme, plan="growth", from_name="Ann")
    outcome = provisioned(row)
    (shown,) = acme.tenancies()
    assert shown["id"] == outcome.external_id
    assert (shown["name"], shown["reference"]) == (row.external_name, row.idempotency_key)
    assert (shown["owner"], shown["plan"], shown["from_name"]) == (OWNER, "growth", "Ann")
    assert can_send(acme, key_of(keys, outcome))


def test_details_refer_to_the_key_and_hold_no_secret(acme: Acme, keys: Path) -> None:
    outcome = provisioned(tenancy(acme))
    assert set(outcome.details) == {"key_ref", "sender", "plan"}
    assert outcome.details["sender"] == acme.tenancies()[0]["sender"]
    for secret in (key_of(keys, outcome), ADMIN_TOKEN):
        assert secret not in str(outcome)


def test_only_the_owner_may_read_the_key(acme: Acme, keys: Path) -> None:
    before = os.umask(0)
    try:
        outcome = provisioned(tenancy(acme))
    finally:
        os.umask(before)
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    assert [path.name for path in keys.iterdir()] == [outcome.details["key_ref"]]
    assert stat.S_IMODE((keys / str(outcome.details["key_ref"])).stat().st_mode) == 0o600


def test_repeating_changes_nothing(acme: Acme, keys: Path) -> None:
    row = tenancy(acme)
    first = provisioned(row)
    key = key_of(keys, first)
    assert provisioned(row) == first
    assert key_of(keys, first) == key
    assert len(acme.tenancies()) == 1


def test_a_slow_tenancy_is_polled_by_whoever_comes_next(slow_acme: Acme, keys: Path) -> None:
    row = tenancy(slow_acme, from_name="Ann")
    outcome: object = run(lambda vendor: vendor.provision(row))
    assert isinstance(outcome, InProgress)
    row = replace(row, operation_id=outcome.operation_id)

    assert isinstance(run(lambda vendor: vendor.find(row)), InProgress)
    assert isinstance(run(lambda vendor: vendor.poll(row)), InProgress)
    slow_acme.finish()
    made = run(lambda vendor: vendor.poll(row))
    assert isinstance(made, Provisioned)
    assert can_send(slow_acme, key_of(keys, made))
    assert [shown["from_name"] for shown in slow_acme.tenancies()] == ["Ann"]


@pytest.mark.parametrize("kind", ["error_after", "drop_after"])
def test_a_create_whose_answer_was_lost_is_repeated_not_doubled(acme: Acme, kind: str) -> None:
    row = tenancy(acme)
    acme.misbehave(kind, count=1)
    assert error_of(lambda vendor: vendor.provision(row)) is UnknownOutcome
    (shown,) = acme.tenancies()
    assert provisioned(row).external_id == shown["id"]
    assert len(acme.tenancies()) == 1


def test_params_changed_between_two_attempts_do_not_clash_with_the_key(acme: Acme) -> None:
    row = tenancy(acme, plan="starter")
    acme.misbehave("error_after", count=1)
    error_of(lambda vendor: vendor.provision(row))
    provisioned(replace(row, params={"plan": "growth"}))
    assert [shown["plan"] for shown in acme.tenancies()] == ["growth"]


def interrupted_before_its_key(acme: Acme, row: Tenancy) -> None:
    """Make the tenancy as a worker that was killed before the second step."""
    headers = {"Idempotency-Key": str(row.idempotency_key)}
    body = {"name": row.external_name, "owner": OWNER, "reference": row.idempotency_key}
    acme.admin.post("/tenancies", json=body, headers=headers).raise_for_status()


def test_killed_between_the_steps_it_resumes_at_the_second(acme: Acme, keys: Path) -> None:
    row = tenancy(acme, from_name="Ann")
    interrupted_before_its_key(acme, row)
    made = provisioned(row)
    assert len(acme.tenancies()) == 1
    assert can_send(acme, key_of(keys, made))


@pytest.mark.parametrize("kind", ["rate_limited", "outage", "unauthorized", "forbidden"])
def test_a_refusal_after_the_tenancy_was_made_does_not_count_as_not_created(
    acme: Acme, kind: str
) -> None:
    row = tenancy(acme, from_name="Ann")
    acme.misbehave(kind, method="PATCH")
    assert error_of(lambda vendor: vendor.provision(row)) is UnknownOutcome
    acme.behave()
    assert isinstance(run(lambda vendor: vendor.find(row)), InProgress)
    assert len(acme.tenancies()) == 1


@pytest.mark.parametrize("missing", ["key", "params"])
def test_a_half_made_tenancy_is_found_as_unfinished_and_finished(
    acme: Acme, keys: Path, missing: str
) -> None:
    row = tenancy(acme)
    interrupted_before_its_key(acme, row)
    if missing == "params":
        provisioned(row)
        row = replace(row, params={"from_name": "Ann"})
    found = run(lambda vendor: vendor.find(row))
    assert isinstance(found, InProgress)
    row = replace(row, operation_id=found.operation_id)
    made = run(lambda vendor: vendor.poll(row))
    assert isinstance(made, Provisioned)
    assert can_send(acme, key_of(keys, made))
    assert acme.tenancies()[0]["from_name"] == row.params.get("from_name", "")
    again = run(lambda vendor: vendor.find(row))
    assert isinstance(again, External)
    assert (again.external_id, again.details) == (made.external_id, made.details)


def test_a_key_issued_but_never_kept_is_rotated(acme: Acme, keys: Path) -> None:
    row = tenancy(acme)
    interrupted_before_its_key(acme, row)
    acme.admin.post(f"/tenancies/{acme.tenancies()[0]['id']}/key").raise_for_status()
    assert can_send(acme, key_of(keys, provisioned(row)))


@pytest.mark.parametrize("left", [None, OLD_KEY])
def test_a_lost_or_outdated_key_is_rotated_not_recreated(
    acme: Acme, keys: Path, left: str | None
) -> None:
    row = tenancy(acme)
    first = provisioned(row)
    old = key_of(keys, first)
    path = keys / str(first.details["key_ref"])
    path.unlink() if left is None else path.write_text(left)
    again = provisioned(replace(row, external_id=first.external_id))
    assert again == first
    assert can_send(acme, key_of(keys, again))
    assert not can_send(acme, old)


def test_changed_params_are_patched_and_the_key_stays(acme: Acme, keys: Path) -> None:
    row = tenancy(acme, plan="starter")
    first = provisioned(row)
    key = key_of(keys, first)
    changed = {"plan": "growth", "from_name": "Ann"}
    again = provisioned(replace(row, external_id=first.external_id, params=changed))
    (shown,) = acme.tenancies()
    assert (shown["plan"], shown["from_name"]) == ("growth", "Ann")
    assert (again.external_id, again.details["plan"]) == (first.external_id, "growth")
    assert key_of(keys, again) == key


def test_a_name_taken_by_somebody_else_is_a_conflict_and_untouched(acme: Acme) -> None:
    row = tenancy(acme)
    body = {"name": row.external_name, "owner": "somebody", "reference": "somebody-else"}
    headers = {"Idempotency-Key": f"{acme.label}theirs"}
    theirs = acme.admin.post("/tenancies", json=body, headers=headers).json()
    assert error_of(lambda vendor: vendor.provision(row)) is NameConflict
    assert run(lambda vendor: vendor.find(row)) is None
    assert acme.tenancies() == [theirs]


def test_find_believes_only_the_whole_key(acme: Acme) -> None:
    row, neighbour = tenancy(acme), tenancy(acme, "aaaab")
    provisioned(neighbour)
    assert run(lambda vendor: vendor.find(row)) is None
    made = provisioned(row)
    found = run(lambda vendor: vendor.find(row))
    assert isinstance(found, External)
    assert (found.external_id, found.key) == (made.external_id, row.idempotency_key)


def test_find_passes_over_what_a_lax_vendor_matches(
    acme: Acme, monkeypatch: pytest.MonkeyPatch
) -> None:
    provisioned(tenancy(acme, "bbbb"))
    whole_listing = AcmeVendor._listing
    monkeypatch.setattr(AcmeVendor, "_listing", lambda vendor, _: whole_listing(vendor, {}))
    assert run(lambda vendor: vendor.find(tenancy(acme))) is None


def test_release_removes_the_tenancy_and_the_key(acme: Acme, keys: Path) -> None:
    row, other = tenancy(acme), tenancy(acme, "bbbb")
    made, kept = provisioned(row), provisioned(other)
    row = replace(row, external_id=made.external_id)
    assert run(lambda vendor: vendor.release(row)) == Released()
    assert [shown["id"] for shown in acme.tenancies()] == [kept.external_id]
    assert [path.name for path in keys.iterdir()] == [kept.details["key_ref"]]


def test_releasing_what_is_gone_is_success_and_removes_the_key(acme: Acme, keys: Path) -> None:
    row = tenancy(acme)
    row = replace(row, external_id=provisioned(row).external_id)
    acme.admin.delete(f"/tenancies/{row.external_id}").raise_for_status()
    assert run(lambda vendor: vendor.release(row)) == Released()
    assert list(keys.iterdir()) == []


def test_a_refused_release_is_not_taken_for_gone(acme: Acme, keys: Path) -> None:
    row = tenancy(acme)
    row = replace(row, external_id=provisioned(row).external_id)
    acme.misbehave("forbidden", count=1)
    assert error_of(lambda vendor: vendor.release(row)) is CredentialError
    assert len(acme.tenancies()) == len(list(keys.iterdir())) == 1


def test_release_without_an_id_touches_nothing(acme: Acme) -> None:
    row = tenancy(acme)
    provisioned(row)
    assert error_of(lambda vendor: vendor.release(row)) is PermanentError
    assert len(acme.tenancies()) == 1


@pytest.mark.parametrize("external_id", ["../keys2/x", "/etc/x", ".."])
def test_an_odd_id_reaches_no_file_outside_the_directory(
    acme: Acme, keys: Path, external_id: str
) -> None:
    outside = keys.parent / "keys2" / "x.key"
    outside.parent.mkdir()
    outside.touch()
    row = replace(tenancy(acme), external_id=external_id)
    with suppress(VendorError):
        run(lambda vendor: vendor.release(row))
    assert outside.exists()


@pytest.mark.parametrize(
    ("kind", "from_create", "from_find"),
    [
        ("rate_limited", RateLimited, RateLimited),
        ("outage", UnknownOutcome, Unavailable),
        ("forbidden", CredentialError, CredentialError),
        ("error_before", UnknownOutcome, TemporaryError),
        ("drop_before", UnknownOutcome, TemporaryError),
    ],
)
def test_a_fault_is_what_the_table_says(
    acme: Acme, kind: str, from_create: type[VendorError], from_find: type[VendorError]
) -> None:
    row = tenancy(acme)
    acme.misbehave(kind)
    assert error_of(lambda vendor: vendor.provision(row)) is from_create
    assert error_of(lambda vendor: vendor.find(row)) is from_find
    assert error_of(listed) is from_find
    acme.behave()
    assert acme.tenancies() == []
    provisioned(row)


def test_a_wrong_token_is_a_credential_error_that_does_not_show_it(
    acme: Acme, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("ACME_ADMIN_TOKEN", "wrong-token")
    with pytest.raises(CredentialError) as caught:
        run(listed)
    assert str(caught.value).startswith("GET /tenancies: 401 Unauthorized")
    assert "wrong-token" not in str(caught.value)


def test_nobody_listening_is_unavailable(acme: Acme, environment: pytest.MonkeyPatch) -> None:
    environment.setenv("ACME_URL", "http://127.0.0.1:1")
    assert error_of(lambda vendor: vendor.provision(tenancy(acme))) is Unavailable


def test_the_inventory_lists_every_page_with_marks(acme: Acme) -> None:
    for number in range(55):
        row = tenancy(acme, f"n{number}")
        interrupted_before_its_key(acme, row)
    found = run(listed)
    assert {one.external_id for one in found} == {shown["id"] for shown in acme.tenancies()}
    assert {one.owner for one in found} == {OWNER}
    assert len({one.key for one in found}) == 55
    assert all(one.created_at is not None and one.created_at.tzinfo for one in found)
