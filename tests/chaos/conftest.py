"""Scenes for the tests of this folder."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos.scene import Scene, scene


@pytest.fixture
def make_scene(tmp_path: Path) -> Iterator[Callable[..., Scene]]:
    """Set scenes over databases: `make_scene(url, ACME_URL=…)`."""
    with ExitStack() as stack:

        def make(url: str, **environment: str) -> Scene:
            return stack.enter_context(scene(url, tmp_path, **environment))

        yield make


@pytest.fixture
def stage(make_scene: Callable[..., Scene], database_url: str) -> Scene:
    """Set a scene over each database."""
    return make_scene(database_url)
