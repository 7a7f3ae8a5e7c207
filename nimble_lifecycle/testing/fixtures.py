"""Pytest fixtures for tests of a server; loaded only by those who ask for them.

# conftest.py
pytest_plugins = ["nimble_lifecycle.testing.fixtures"]
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from nimble_lifecycle.testing.host import Host


@pytest.fixture
def lifecycle_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Give the URL of a SQLite file of this test's own; both halves use it without being told.

    It is made by whichever half opens it first.
    """
    url = f"sqlite:///{tmp_path / 'nimble.db'}"
    monkeypatch.setenv("NIMBLE_DATABASE_URL", url)
    return url


@pytest.fixture
def lifecycle_host(lifecycle_database: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Host]:
    """Give `Host`, for the workspace `ws_test` where none is named, over `lifecycle_database`."""
    monkeypatch.delenv("NB_WORKSPACE_ID", raising=False)
    return partial(Host, workspace="ws_test")
