"""The build hook, on projects of other shapes than the example's."""

import json
import sys
from pathlib import Path

import pytest
from hatchling.builders.wheel import WheelBuilder

from nimble_lifecycle.errors import ConfigurationError
from nimble_lifecycle.manifest.hatch import ManifestHook
from nimble_lifecycle.protocol import HOST_ID

SERVER = """
from fastmcp import FastMCP
from .models import GREETING

mcp = FastMCP("acme")

@mcp.tool(meta={"ai.nimblebrain/lifecycle": {"event": "ready"}})
def workspace_ready() -> str:
    return GREETING
"""
ENTRIES = [
    {"name": f"io.acme/{name}", "description": "Campaigns", "version": "1.0.0"}
    for name in ("outreach", "other")
]


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_imports: None) -> Path:
    """Make a project whose package is in `src`, beside a catalog of two servers."""
    package = tmp_path / "src" / "hatched"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "models.py").write_text("GREETING = 'up'")
    (package / "server.py").write_text(SERVER)
    (tmp_path / "catalog.json").write_text(json.dumps({"servers": ENTRIES}))
    monkeypatch.setattr(sys, "path", [*sys.path])
    return tmp_path


def build(project: Path, **settings: object) -> None:
    """Run the hook as hatchling does."""
    config = {"manifest": "catalog.json", "entry": "io.acme/other", **settings}
    builder = WheelBuilder(str(project))
    ManifestHook(
        str(project), config, builder.config, builder.metadata, "", "wheel", builder.app
    ).initialize("standard", {})


@pytest.mark.parametrize("target", ["hatched.server:mcp", "src/hatched/server.py:mcp"])
def test_a_package_in_src_gets_its_names_into_its_entry_of_a_catalog(project, target):
    build(project, target=target)
    first, second = json.loads((project / "catalog.json").read_text())["servers"]
    assert "_meta" not in first
    assert second["_meta"][HOST_ID]["lifecycle"] == {"on_ready": "workspace_ready"}


def test_a_stale_entry_fails_the_build_with_the_whole_command_that_mends_it(project):
    with pytest.raises(ConfigurationError) as caught:
        build(project, target="hatched.server:mcp", check=True)
    assert str(caught.value).endswith(
        "run nimble-manifest write hatched.server:mcp --manifest catalog.json --entry io.acme/other"
    )
