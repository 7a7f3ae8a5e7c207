"""What is stored and shown about a failure holds no secret."""

import json
from collections.abc import Callable
from urllib.parse import quote, quote_plus, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nimble_lifecycle.errors import CredentialError
from nimble_lifecycle.reconciler.redact import CHAIN, FRAMES, MAX_ERROR, described, redacted, traced


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("connect to postgresql://app:hunter2@db:5432/x failed", "hunter2"),
        ("connect to postgresql://app:hun@ter/2@db:5432/x failed", "ter/2"),
        ("redis://:s3cr3tpw@cache/0", "s3cr3tpw"),
        ("https://deadbeef@errors.test/1", "deadbeef"),
        ("host=db password=hunter2 user=app", "hunter2"),
        ("host=db password='hunter 2' user=app", "hunter 2"),
        ('{"password": "hun ter2", "user": "app"}', "ter2"),
        (json.dumps(json.dumps({"password": "hun ter2"})), "ter2"),
        ("Authorization: Bearer abc.def-123", "abc.def-123"),
        ("Authorization: Bearer\nabc.def-123", "abc.def-123"),
        ("Authorization: Basic dXNlcjpwdw==", "dXNlcjpwdw"),
        ("Authorization: Token abcdef123", "abcdef123"),
        ("authorization=hunter2", "hunter2"),
        (str({"Authorization": "Acme-Key abcdef123"}), "abcdef123"),
        (str({"headers": str({"Authorization": "Acme-Key abcdef123"})}), "abcdef123"),
        (str([(b"authorization", b"Token abcdef123")]), "abcdef123"),
        ("X-Api-Token: b1234567", "b1234567"),
        ("Cookie: lang=en; session=deadbeef; more=facade", "deadbeef"),
        ("Cookie: lang=en; session=deadbeef; more=facade", "facade"),
        ("auth=('admin', 'hunter3')", "hunter3"),
        ("private_key: 'abc 123'", "abc 123"),
        ("GET /x?api_key=sk123456&page=2", "sk123456"),
        ("GET /x?X-Amz-Signature=abcdef0123&page=2", "abcdef0123"),
        ("access_token: 'abc123'", "abc123"),
        ("client_secret=abc123", "abc123"),
        ("run acme --token abc123 --page 2", "abc123"),
        ("run acme --password 'my secret' x", "secret"),
        ("-----BEGIN PRIVATE KEY-----\nDEK-Info: A-B\n\nMIIEow\n-----END", "MIIEow"),
        ("<login><password>hunter2</password></login>", "hunter2"),
        ("<ns:apiKey>abc123</ns:apiKey>", "abc123"),
        ("body=password%3Dhunter2%26page%3D2", "hunter2"),
        ("{'password' => 'hunter2'}", "hunter2"),
        (
            "-----BEGIN RSA PRIVATE KEY-----\nMIIEow\nIBAAKC\n-----END RSA PRIVATE KEY-----",
            "IBAAKC",
        ),
        ("card declined for sk_live_4eC39HqLyjWDarjtT1zdp7dc", "T1zdp7dc"),
        ("push by ghp_16C7e42F292c6912E7710c838347Ae178B4a refused", "838347Ae"),
        ("bot xoxb-17653672481-19874698323 is gone", "19874698323"),
        ("key AKIAIOSFODNN7EXAMPLE is not valid", "FODNN7EXAMPLE"),
        ("got eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc_-9 back", "eyJzdWIiOiIxIn0"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, secret: str) -> None:
    assert secret not in redacted(text)
    assert "***" in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "POST /tenancies: 409 Conflict (name acme-1 is taken), see https://acme.test/help",
        "max-tokens 4096 exceeded for sk-production-eu-west by a non-secret value",
        "the task-list of desk_1 and risk-assessment-2030 use --page 2 and <name>x</name>",
        "the author: Jane, asked for a token, then left; passed: 3",
    ],
)
def test_what_is_no_secret_stays(text: str) -> None:
    assert redacted(text) == text


def test_values_of_secret_variables_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACME_ADMIN_TOKEN", "admin-123456")
    monkeypatch.setenv("ACME_KEY", "admin-123456-and-more")
    monkeypatch.setenv("SHORT_TOKEN", "yes")
    said = redacted("yes, refused admin-123456-and-more and admin-123456")
    assert said == "yes, refused *** and ***"


@pytest.mark.parametrize(
    "name",
    ["ACME_PWD", "acme_pwd", "DBPWD", "ACME_PAT", "PAT", "ACME_AUTH", "PGPASSWORD", "X_PASS"],
)
def test_a_variable_is_secret_by_its_name(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "quite-hidden")
    assert redacted("got quite-hidden") == "got ***"


@pytest.mark.parametrize("name", ["PWD", "OLDPWD", "ACME_PATH", "GIT_AUTHOR_NAME", "ACME_URL"])
def test_other_variables_are_not(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, "/quite/plain")
    assert redacted("got /quite/plain") == "got /quite/plain"


WRITTEN: list[Callable[[str], str]] = [
    str,
    repr,
    json.dumps,
    lambda value: json.dumps(value, ensure_ascii=False),
    lambda value: json.dumps(json.dumps(value)),
    lambda value: repr(json.dumps({"sent": value})),
    lambda value: repr(value.encode()),
    quote,
    quote_plus,
    lambda value: quote(value, safe="/:@+"),
    lambda value: quote(value, safe="").replace("%2F", "%2f"),
    lambda value: quote(quote(value, safe=""), safe=""),
    lambda value: urlencode({"value": value}),
    lambda value: " ".join(value.split()),
]


@pytest.mark.parametrize("written", WRITTEN, ids=range(len(WRITTEN)))
def test_a_known_secret_is_hidden_however_it_is_escaped(
    written: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = "qu\"o'te\\n/with+chars%&\nsecond line é😀 end"
    monkeypatch.setenv("ACME_ADMIN_TOKEN", secret)
    said = redacted(f"sent {written(secret)}, refused")
    assert "***" in said
    assert not any(part in said for part in ("qu", "te", "with", "chars", "second", "end"))
    assert said.endswith("refused")


@given(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=8))
def test_any_known_secret_is_hidden_in_any_writing(secret: str) -> None:
    secret = f"begin{secret}end"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACME_ADMIN_TOKEN", secret)
        for written in WRITTEN[:-1]:
            assert "begin" not in redacted(written(secret))


def test_a_line_of_a_known_secret_is_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(
        "ACME_KEY", "-----BEGIN KEY-----\nMIIEabcdefgh\nzzzz9876\n-----END KEY-----\n"
    )
    assert redacted("bad line MIIEabcdefgh, then zzzz9876") == "bad line ***, then ***"


@pytest.mark.parametrize(
    "value",
    [
        "postgresql://app:s3cret%40pass@db/x",
        "postgresql://db/x?password=s3cret%40pass&user=app",
        "host=db password='s3cret@pass' user=app",
    ],
)
@pytest.mark.parametrize("name", ["NIMBLE_DATABASE_URL", "CACHE"])
def test_the_password_within_a_value_is_hidden_alone(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(name, value)
    for written in ("s3cret@pass", "s3cret%40pass"):
        assert redacted(f"refused {written} for app at db/x") == "refused *** for app at db/x"


def test_control_characters_become_spaces() -> None:
    assert redacted("a\x1b[31mb\nc\u202ed\0\ud800e") == "a [31mb c d  e"


@pytest.mark.parametrize("letter", ["x", "ü", "😀"])
def test_the_text_is_cut_at_two_kilobytes(letter: str) -> None:
    said = redacted(letter * 10_000)
    assert MAX_ERROR - 4 < len(said.encode()) <= MAX_ERROR


@pytest.mark.parametrize("length", [MAX_ERROR, 4 * MAX_ERROR, 50 * MAX_ERROR])
def test_a_secret_is_hidden_wherever_it_stands(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACME_KEY", "quite-hidden")
    for shrinking in ("token=" + "x" * length, "quite-hidden" * (length // 12)):
        for secret in ("quite-hidden", "https://app:quite@db"):
            for gap in range(1, 16):
                assert "quite" not in redacted(f"{shrinking}{' ' * gap}{secret}")


@pytest.mark.parametrize(
    "part", ["token", "a", "a://", "=", "\\", "eyJ-", "bearer ", "authorization:", "cookie:; "]
)
def test_a_huge_text_is_read_to_its_end(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Squared, these would take minutes.
    monkeypatch.setenv("ACME_KEY", "\\\\quite-hidden")
    assert len(redacted(part * 50_000).encode()) <= MAX_ERROR


def test_an_error_is_named_by_class_and_text() -> None:
    assert described(KeyError("region")) == "KeyError: 'region'"
    assert described(TimeoutError()) == "TimeoutError"


def test_an_error_that_cannot_say_its_text_is_named_by_class() -> None:
    class BrokenError(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert described(BrokenError()) == "BrokenError"


def test_the_name_of_an_error_is_no_credential() -> None:
    assert described(CredentialError("key expired")) == "CredentialError: key expired"
    assert described(CredentialError("PATCH /b: 403")) == "CredentialError: PATCH /b: 403"
    assert len(described(CredentialError("é" * 5000)).encode()) <= MAX_ERROR


def test_a_stack_is_told_from_its_cause_on_and_holds_no_secret(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ACME_KEY", "quite-hidden")
    try:
        try:
            int("quite-hidden")
        except ValueError as error:
            raise KeyError("Bearer abcdef") from error
    except KeyError as error:
        first, cause, second, last = traced(error).splitlines()
    assert first.endswith('_holds_no_secret: int("***")')
    assert cause == "  ValueError: invalid literal for int() with base 10: '***'"
    assert "raise KeyError" in second
    assert last.startswith("  KeyError: ")
    assert "abcdef" not in second + last


def test_a_stack_without_end_is_cut() -> None:
    def deeper(depth: int) -> None:
        try:
            raise KeyError(depth)
        except KeyError:
            if depth:
                deeper(depth - 1)
            raise

    with pytest.raises(KeyError) as caught:
        deeper(100)
    assert len(traced(caught.value).splitlines()) <= CHAIN * (FRAMES + 1)


def test_an_error_without_a_stack_is_told_by_its_name() -> None:
    assert traced(TypeError("no")) == "  TypeError: no"


def test_an_error_that_cannot_even_be_looked_at_is_told_by_its_name() -> None:
    class BrokenError(Exception):
        @property
        def __cause__(self) -> BaseException:
            raise KeyError("cause")

    assert traced(BrokenError("no")) == "BrokenError: no"
