"""What is stored and shown about a failure holds no secret."""

import time

import pytest

from nimble_lifecycle.reconciler.redact import MAX_ERROR, described, redacted


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("connect to postgresql://app:hunter2@db:5432/x failed", "hunter2"),
        ("connect to postgresql://app:hun@ter/2@db:5432/x failed", "ter/2"),
        ("redis://:s3cr3tpw@cache/0", "s3cr3tpw"),
        ("host=db password=hunter2 user=app", "hunter2"),
        ("host=db password='hunter 2' user=app", "hunter 2"),
        ('{"password": "hun ter2", "user": "app"}', "ter2"),
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("Authorization: Basic dXNlcjpwdw==", "dXNlcjpwdw"),
        ("GET /x?api_key=sk123456&page=2", "sk123456"),
        ("GET /x?X-Amz-Signature=abcdef0123&page=2", "abcdef0123"),
        ("access_token: 'abc123'", "abc123"),
        ("client_secret=abc123", "abc123"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc_-9 back", "eyJzdWIiOiIxIn0"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, secret: str) -> None:
    assert secret not in redacted(text)
    assert "***" in redacted(text)


def test_what_is_no_secret_stays() -> None:
    text = "POST /tenancies: 409 Conflict (name acme-1 is taken), see https://acme.test/help"
    assert redacted(text) == text


def test_values_of_secret_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_ADMIN_TOKEN", "admin-123456")
    monkeypatch.setenv("ACME_KEY", "admin-123456-and-more")
    monkeypatch.setenv("SHORT_TOKEN", "yes")
    said = redacted("yes, refused admin-123456-and-more and admin-123456")
    assert said == "yes, refused *** and ***"


def test_control_characters_become_spaces() -> None:
    assert redacted("a\x1b[31mb\nc\u202ed\0\ud800e") == "a [31mb c d  e"


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_the_text_is_cut_at_two_kilobytes(letter: str) -> None:
    said = redacted(letter * 10_000)
    assert MAX_ERROR - 4 < len(said.encode()) <= MAX_ERROR


@pytest.mark.parametrize("text", ["token" * 10**6, "a" * 10**7, "a://" * 10**6, "=" * 10**6])
def test_a_huge_text_costs_no_time(text: str) -> None:
    started = time.monotonic()
    redacted(text)
    assert time.monotonic() - started < 0.5


def test_an_error_is_named_by_class_and_text() -> None:
    assert described(KeyError("region")) == "KeyError: 'region'"
    assert described(TimeoutError()) == "TimeoutError"


def test_an_error_that_cannot_say_its_text_is_named_by_class() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(BrokenError()) == "BrokenError"
