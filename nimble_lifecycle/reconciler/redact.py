"""Keeps secrets out of what is stored and shown about a failure."""

import json
import os
import re
import traceback
from collections.abc import Iterator
from functools import lru_cache
from typing import Final
from urllib.parse import unquote

MAX_ERROR = 2048
"""Longest `last_error`, in bytes of UTF-8."""

LONGEST_READ: Final = 65536
"""Characters of a text that are read at all."""

FRAMES: Final = 20
"""Calls of a stack that are told, the innermost."""

CHAIN: Final = 5
"""Errors that are told with the one they led to."""

_HIDDEN: Final = "***"
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASS|KEY|CREDENTIAL|COOKIE|JWT|AUTH(?!ORS?(?:_|$))|(?:^|_)PAT(?:_|$)"
    r"|(?<!^)(?<!^OLD)PWD",  # a shell's PWD and OLDPWD are directories
    re.IGNORECASE,
)
_SHORTEST: Final = 6
"""Shorter values of the environment are words like `yes`, not secrets."""

_IS: Final = r"(?:[\\\"']{0,4}\s{0,5}(?:[=:]>?|%3D)|[\\\"']{1,4},)\s{0,5}(?:b(?=[\"']))?\\{0,3}"
"""What stands between a name and its value in a header, a query, JSON or a printed dict or list."""

_WORDS: Final = (
    r"token|secret|passw|passphrase|pwd|(?:api|access|private)[_-]?key|auth(?!or)"
    r"|credential|signature"
)
"""What the name of a secret has in it."""

# Each takes all it looks at, or gives up within a bounded distance: the time grows with the text.
_URL: Final = re.compile(r"(?P<kept>://)(?P<hidden>[^\s\"'<>]+)")
_NAMED: Final = re.compile(
    rf"(?P<kept>(?:{_WORDS})[\w-]{{0,30}}{_IS})"
    r"(?P<hidden>\"[^\"]*\"?|'[^']*'?|\([^)]*\)?|[^\s\"'&,;}]+)",
    re.IGNORECASE,
)
_PATTERNS: Final = (
    re.compile(r"\b(?P<kept>bearer\s+|basic\s+)[\w.~+/=-]+", re.IGNORECASE),
    # a scheme, whatever its name, and what comes after it
    re.compile(
        r"(?P<kept>authorization" + _IS + r")"
        r"(?:\"[^\"]*\"?|'[^']*'?|[^\s\"'\\]+(?:\s+[^\s\"'\\]+)?)",
        re.IGNORECASE,
    ),
    re.compile(
        r"(?P<kept>cookie" + _IS + r")(?:\"[^\"]*\"?|'[^']*'?|[^\s\"']+(?:(?<=;)\s+[^\s\"']+)*)",
        re.IGNORECASE,
    ),
    _NAMED,
    # what follows an option of a command, or stands in an element of XML
    re.compile(
        rf"(?P<kept>(?<![\w-])--?(?:{_WORDS})[\w-]{{0,30}}\s{{1,5}})"
        r"(?:\"[^\"]*\"?|'[^']*'?|[^\s\"']+)",
        re.IGNORECASE,
    ),
    re.compile(
        rf"(?P<kept><(?:[\w-]{{1,30}}:)?[\w-]{{0,30}}(?:{_WORDS})[\w-]{{0,30}}>)[^<]+",
        re.IGNORECASE,
    ),
    # the body of a private key, as a file has it
    re.compile(r"(?P<kept>-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY-----)(?:(?!-----END)[\s\S])+"),
    # what well-known services begin theirs with
    re.compile(
        r"\b(?P<kept>)(?:[rs]k[-_](?:live|test|proj|ant)[-_][\w-]{8}|gh[pousr]_\w{12}|github_pat_\w{12}|xox[a-z]-[\w-]{8}"
        r"|glpat-[\w-]{8}|AIza[\w-]{16}|AKIA[0-9A-Z]{12}|SG\.[\w-]{8})[\w.-]*"
    ),
    # JSON web tokens, wherever they stand
    re.compile(r"\b(?P<kept>)eyJ[\w-]{5}[\w.-]*"),
)


def redacted(text: str) -> str:
    """Hide what looks like a secret, and every value this process was given as one.

    Those are the values of environment variables whose name says so, and the passwords within any
    other, however they are escaped. The result has no control characters and at most `MAX_ERROR`
    bytes.
    """
    # Cut only afterwards, or far behind what is kept: half a secret would not be known as one.
    text = text[:LONGEST_READ]
    for secret in _given_secrets():
        text = _spelled(secret).sub(_HIDDEN, text)
    text = _URL.sub(_without_user, text)
    for pattern in _PATTERNS:
        text = pattern.sub(rf"\g<kept>{_HIDDEN}", text)
    return _cut("".join(c if c.isprintable() else " " for c in text[:MAX_ERROR]))


def described(error: BaseException) -> str:
    """Name an error by its class and its redacted text."""
    name = type(error).__name__
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001  # the class of an adapter may be broken in any way
        text = ""
    # The name apart, or `CredentialError: no` would read as a credential and its value.
    return _cut(f"{name}: {redacted(text)}" if text else name)


def traced(error: BaseException) -> str:
    """Tell an error with its stack, line by line redacted, what led to it first.

    It holds lines of source and no value of a variable.
    """
    try:
        return "\n".join(line for each in reversed(list(_led_to(error))) for line in _told(each))
    except Exception:  # noqa: BLE001  # the class of an adapter may be broken in any way
        return described(error)


def _led_to(error: BaseException | None) -> Iterator[BaseException]:
    """Give an error and those it came from, the last first."""
    for _ in range(CHAIN):
        if error is None:
            return
        yield error
        context = None if error.__suppress_context__ else error.__context__
        error = error.__cause__ or context


def _told(error: BaseException) -> Iterator[str]:
    for frame in traceback.extract_tb(error.__traceback__, limit=-FRAMES):
        place = redacted(f"{frame.filename}:{frame.lineno} in {frame.name}")
        yield f"  {place}: {redacted(frame.line or '')}"  # apart, as in `described`
    yield f"  {described(error)}"


def _cut(text: str) -> str:
    return text.encode("utf-8", "replace")[:MAX_ERROR].decode("utf-8", "ignore")


def _without_user(url: re.Match[str]) -> str:
    """Hide a URL's user and password: all up to the last @, since passwords may hold one."""
    user, at, place = url["hidden"].rpartition("@")
    return f"{url['kept']}{_HIDDEN if user else ''}{at}{place}"


def _given_secrets() -> list[str]:
    """Give the longest first: one may be the beginning of another."""
    found = {
        secret
        for name, value in os.environ.items()
        for secret in (*_passwords(value), *(_whole(value) if _SECRET_NAME.search(name) else ()))
        if len(secret) >= _SHORTEST
    }
    return sorted(found, key=len, reverse=True)


def _whole(value: str) -> Iterator[str]:
    """Give a secret value, and its lines: a key of many may be shown one by one."""
    yield value.strip()
    yield from (line.strip() for line in value.splitlines())


def _passwords(value: str) -> Iterator[str]:
    """Give the passwords within a value: of a URL, its query, or a list of name=value."""
    for url in _URL.finditer(value):
        yield unquote(url["hidden"].rpartition("@")[0].partition(":")[2])
    for named in _NAMED.finditer(value):
        yield unquote(named["hidden"].strip("\"'"))


@lru_cache(maxsize=256)
def _spelled(secret: str) -> re.Pattern[str]:
    """Find a secret however each of its characters is escaped: by Python, JSON or a URL."""
    return re.compile("".join(map(_spellings, re.sub(r"\\+", r"\\", secret))))


def _spellings(character: str) -> str:
    """Allow for escapes of escapes: backslashes and percent signs may have been doubled.

    Possessive, and no spelling begins with a backslash: there is one way to match a run of them.
    """
    if character.isascii() and character.isalnum():
        return character
    if character == "\\":
        return r"(?:\\|%(?:25)*5[Cc]){1,32}+"
    bare = character.encode("utf-8", "surrogateescape")
    quoted = "".join(f"%(?:25)*{byte:02X}" for byte in bare)
    inner = {character, repr(character)[1:-1], repr(bare)[2:-1], json.dumps(character)[1:-1]}
    written = {re.escape(form.lstrip("\\")).replace(r"\\", r"\\{1,8}+") for form in inner}
    percent = {quoted, quoted.lower()}
    space = {r"\s+", r"\+"} if character.isspace() else set()
    longest_first = sorted(written | percent | space, key=len, reverse=True)
    return rf"\\{{0,8}}+(?:{'|'.join(longest_first)})"
