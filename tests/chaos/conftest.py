"""Scenes for the tests of this folder: a database, Acme, a host, and workers to come."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos.scene import Scene


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Set a scene over a database: `make_scene(url, ACME_PROVISIONING_SECONDS=…)`."""
    with ExitStack() as stack:

        def make(url: str, **environment: str) -> Scene:
            return Scene(url, tmp_path, stack, **environment)

        yield make


@pytest.fixture
def scene(make_scene: Callable[..., Scene], database_url: str) -> Scene:
    """Set a scene over each database."""
    return make_scene(database_url)


@pytest.fixture
def sqlite_scene(make_scene: Callable[..., Scene], sqlite_url: str) -> Scene:
    """Set a scene where the kind of database makes no difference."""
    return make_scene(sqlite_url)


@pytest.fixture
def postgres_scene(make_scene: Callable[..., Scene], postgres_url: str) -> Scene:
    """Set a scene for what only PostgreSQL can do."""
    return make_scene(postgres_url)
