"""`make demo` ends well, on both databases."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

DEMO = Path(__file__).parents[1] / "examples" / "acme_outreach" / "demo.py"


@pytest.mark.slow
def test_the_demo_ends_well(empty_database_url: str) -> None:
    environment = {**os.environ, "DEMO_DATABASE_URL": empty_database_url}
    done = subprocess.run(
        [sys.executable, str(DEMO)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All as it should be" in done.stdout
