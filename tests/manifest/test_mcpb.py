"""What is written, held against MCPB's own command line as an outside witness."""

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from nimble_lifecycle.manifest.cli import main

EXAMPLE = Path(__file__).parents[2] / "examples" / "acme_outreach"


@pytest.fixture(scope="module")
def mcpb(from_npm: Callable[..., Path]) -> Path:
    """Install the command."""
    return from_npm("@anthropic-ai/mcpb@2") / "node_modules" / ".bin" / "mcpb"


@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.3", "0.4"])
def test_mcpb_accepts_a_manifest_that_was_written(mcpb, tmp_path, version):
    for name in ("server.py", "params.py"):
        shutil.copy(EXAMPLE / name, tmp_path)
    manifest = json.loads((EXAMPLE / "manifest.json").read_text())
    del manifest["_meta"]
    path = tmp_path / "manifest.json"
    path.write_text(json.dumps({**manifest, "manifest_version": version}))
    with pytest.raises(SystemExit) as ended:
        main(["write", f"{tmp_path}/server.py:mcp", "--manifest", str(path)])
    assert ended.value.code == 0
    assert "_meta" in json.loads(path.read_text())
    done = subprocess.run(
        [mcpb, "validate", path], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
