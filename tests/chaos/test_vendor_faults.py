"""Acme misbehaves, in each of its ways, while workspaces come, change and go."""

import shutil
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from chaos.scene import TIME_LIMIT, Scene, until

FAULTS = {
    "error_after": 0.0,
    "error_before": 0.0,
    "drop_after": 0.0,
    "drop_before": 0.0,
    "slow": 2 * TIME_LIMIT,
    "hang": 2 * TIME_LIMIT,
    "rate_limited": 0.5,
    "outage": 0.5,
    "unauthorized": 0.0,
    "forbidden": 0.0,
}
"""Acme's faults and how long they take, or tell us to wait, in seconds."""

REQUESTS = 6
"""How many requests meet each fault."""


@pytest.fixture(scope="module")
def lasting(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """Set one scene, with its workers, for all faults."""
    folder = tmp_path_factory.mktemp("vendor")
    shutil.copyfile(sqlite_template, folder / "nimble.db")
    with ExitStack() as stack:
        lasting = Scene(f"sqlite:///{folder / 'nimble.db'}", folder, stack)
        lasting.worker()
        lasting.worker()
        yield lasting


@pytest.mark.parametrize("fault", FAULTS)
def test_a_vendor_that_misbehaves_ends_with_exactly_one_resource_for_each_workspace(
    lasting: Scene, fault: str
) -> None:
    changing, going, *new = (f"{fault}-{name}" for name in ("changing", "going", "a", "b", "c"))
    lasting.host.ready(changing, going)
    lasting.settled()
    lasting.acme.misbehave(fault, count=REQUESTS, seconds=FAULTS[fault])
    lasting.host.ready(*new)
    lasting.host.ready(changing, from_name="changed")
    lasting.host.removing(going)
    until("the fault was met often enough", lambda: not lasting.acme.misbehaving())
    lasting.settled()
    assert lasting.books.made_twice() == []
