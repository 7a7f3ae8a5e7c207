"""Short rounds of what `make chaos` plays for longer, and what makes their verdict worth having."""

import shutil
from pathlib import Path

import pytest
from chaos.disks import small_disk
from chaos.round import Plan, play
from clusters import Cluster

SECONDS = 12.0


@pytest.mark.chaos
def test_a_round_of_chaos_on_postgresql_ends_as_promised(cluster: Cluster, tmp_path: Path) -> None:
    plan = Plan("1", SECONDS, "postgresql", "Marked", workers=2)
    figures = play(plan, cluster.url, cluster, tmp_path)
    assert figures.wrong == {}


@pytest.mark.chaos
def test_a_round_of_chaos_on_sqlite_ends_as_promised(sqlite_template: Path, tmp_path: Path) -> None:
    plan = Plan("1", SECONDS, "sqlite", "Acme", workers=2)
    with small_disk(tmp_path / "disk") as disk:
        shutil.copyfile(sqlite_template, tmp_path / "disk" / "nimble.db")
        figures = play(plan, f"sqlite:///{tmp_path / 'disk' / 'nimble.db'}", disk, tmp_path)
    assert figures.wrong == {}
