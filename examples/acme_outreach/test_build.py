"""The connector's wheel: its manifest is made from its handlers, and a wrong one is not built."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pytest

HERE = Path(__file__).parent
NAMES = {"on_ready": "workspace_ready", "on_removing": "workspace_removing"}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Copy what the package is built of, with a manifest that names no handler yet."""
    for name in ("pyproject.toml", "server.py", "params.py"):
        shutil.copy(HERE / name, tmp_path)
    manifest = json.loads((HERE / "manifest.json").read_text())
    del manifest["_meta"]
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    return tmp_path


def build(project: Path) -> "subprocess.CompletedProcess[str]":
    command = (
        sys.executable,
        "-m",
        "build",
        "--wheel",
        "--no-isolation",
        "--skip-dependency-check",
    )
    return subprocess.run(
        [*command, str(project)], capture_output=True, text=True, check=False, timeout=300
    )


def names_in(project: Path) -> object:
    """Read the names of the handlers from the manifest in the wheel."""
    [wheel] = (project / "dist").glob("*.whl")
    manifest = json.loads(ZipFile(wheel).read("acme_outreach/manifest.json"))
    return manifest["_meta"]["ai.nimblebrain/host"]["lifecycle"]


def test_the_wheel_contains_the_manifest_with_the_names_of_the_handlers(project: Path) -> None:
    built = build(project)
    assert built.returncode == 0, built.stdout + built.stderr
    assert names_in(project) == NAMES


def test_a_server_whose_handler_no_host_would_see_is_not_built(project: Path) -> None:
    with (project / "server.py").open("a") as server:
        server.write("\nmcp.disable(names={'workspace_ready'})\n")
    built = build(project)
    assert built.returncode != 0
    assert "manifest.json is not right" in built.stdout + built.stderr
    assert not list((project / "dist").glob("*.whl"))
