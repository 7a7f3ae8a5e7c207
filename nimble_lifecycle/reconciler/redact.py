"""Keeps secrets out of what is stored and shown about a failure."""

import os
import re
from typing import Final

MAX_ERROR = 2048
"""Longest `last_error`, in bytes of UTF-8."""

_READ: Final = 4 * MAX_ERROR
"""Characters of a text that are looked at; an adapter's error may hold a whole response."""

_HIDDEN: Final = "***"
_SECRET_NAME: Final = re.compile(
    r"TOKEN|SECRET|PASSW|PASSPHRASE|KEY|CREDENTIAL|AUTH|DSN|DATABASE_URL", re.IGNORECASE
)
_SHORTEST: Final = 6
"""Shorter values of the environment are words like `yes`, not secrets."""

_PATTERNS: Final = (
    # user and password of a URL, up to the last @, since passwords may hold one themselves
    (
        re.compile(r"(?P<kept>[a-z][a-z0-9+.-]{0,30}://)[^\s\"'<>]+@", re.IGNORECASE),
        r"\g<kept>***@",
    ),
    (re.compile(r"\b(?P<kept>bearer|basic)\s+[\w.~+/=-]+", re.IGNORECASE), r"\g<kept> ***"),
    (
        re.compile(
            r"(?P<kept>(?:token|secret|passw|passphrase|pwd|api[_-]?key|authorization|credential"
            r"|signature)[\w-]{0,30}[\"']?\s{0,5}[=:]\s{0,5})"
            r"(?:\"[^\"]*\"?|'[^']*'?|[^\s\"'&,;}]+)",
            re.IGNORECASE,
        ),
        r"\g<kept>***",
    ),
    # JSON web tokens, wherever they stand
    (re.compile(r"\beyJ[\w-]{5,}\.[\w-]+\.[\w-]*"), _HIDDEN),
)


def redacted(text: str) -> str:
    """Hide what looks like a secret, and every value this process was given as one.

    Those are the values of environment variables whose name says so. The result has no control
    characters and at most `MAX_ERROR` bytes.
    """
    text = text[:_READ]
    for value in _given_secrets():
        text = text.replace(value, _HIDDEN)
    for pattern, replacement in _PATTERNS:
        text = pattern.sub(replacement, text)
    printable = "".join(c if c.isprintable() else " " for c in text)
    return printable.encode("utf-8", "replace")[:MAX_ERROR].decode("utf-8", "ignore")


def described(error: BaseException) -> str:
    """Name an error by its class and its redacted text."""
    name = type(error).__name__
    try:
        text = str(error).strip()
    except Exception:  # noqa: BLE001  # the class of an adapter may be broken in any way
        text = ""
    return redacted(f"{name}: {text}" if text else name)


def _given_secrets() -> list[str]:
    """Give the longest first: one may be the beginning of another."""
    values = {
        value
        for name, value in os.environ.items()
        if _SECRET_NAME.search(name) and len(value) >= _SHORTEST
    }
    return sorted(values, key=len, reverse=True)
