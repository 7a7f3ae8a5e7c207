"""Two Acmes, kept over the tests and made as new for each."""

import secrets
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from acme_process import Acme, serving


@pytest.fixture(scope="session")
def prompt_acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acme]:
    """Run a service that provisions at once."""
    database = tmp_path_factory.mktemp("acme") / "acme.db"
    with serving(database, ACME_PROVISIONING_SECONDS="0") as acme:
        yield acme


@pytest.fixture(scope="session")
def slower_acme(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Acme]:
    """Run a service that provisions when a test says so."""
    database = tmp_path_factory.mktemp("acme") / "acme.db"
    with serving(database, ACME_PROVISIONING_SECONDS="3600") as acme:
        yield acme


@pytest.fixture
def steady_acme(tmp_path: Path) -> Iterator[Acme]:
    """Run a service that takes its time to provision, and comes to an end by itself."""
    with serving(tmp_path / "acme.db", ACME_PROVISIONING_SECONDS="0.5") as acme:
        yield acme


@pytest.fixture
def acme(prompt_acme: Acme) -> Acme:
    """Give Acme, as new, provisioning at once."""
    prompt_acme.clear()
    return replace(prompt_acme, label=secrets.token_hex(4))


@pytest.fixture
def slow_acme(slower_acme: Acme) -> Acme:
    """Give Acme, as new, provisioning until `finish`."""
    slower_acme.clear()
    return replace(slower_acme, label=secrets.token_hex(4))


@pytest.fixture
def anyio_backend() -> str:
    """Run `@pytest.mark.anyio` tests on asyncio only."""
    return "asyncio"
