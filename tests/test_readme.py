"""The snippets of the README and of pages like it, each page from top to bottom in an empty folder.

- A `python` block whose first line is a comment with a file name (`# server.py`) becomes that file;
  any other `python` block is run.
- A `bash` block is run; it stops at the first command that fails. What it starts in the background
  is ended with it.
- Every other block (`console`, `json`, `text`, ...) is only shown.
"""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[1]
FILE_NAME = re.compile(r"# (?P<name>[\w./-]+\.py)\s*\n")
LIMIT = 180  # seconds for one block
PAGES = [
    "README.md",
    "docs/authentication.md",
    "docs/manifest.md",
    "docs/sdk.md",
    "docs/testing.md",
    pytest.param("docs/from-hand-written.md", marks=pytest.mark.slow),
    pytest.param("docs/install.md", marks=pytest.mark.slow),
]


@pytest.mark.parametrize("page", PAGES)
def test_the_snippets_of_a_page_work(page, tmp_path):
    snippets = [
        token
        for token in MarkdownIt().parse((ROOT / page).read_text())
        if token.type == "fence" and token.info.split()[:1] in (["python"], ["bash"])
    ]
    assert snippets
    for snippet in snippets:
        play(snippet, tmp_path, page)


@pytest.mark.slow
def test_a_strict_type_checker_takes_what_the_readme_shows(tmp_path):
    for snippet in MarkdownIt().parse((ROOT / "README.md").read_text()):
        named = FILE_NAME.match(snippet.content)
        if named and named["name"] in ("server.py", "vendor.py"):
            (tmp_path / named["name"]).write_text(snippet.content)
    check = [sys.executable, "-m", "mypy", "--strict", "server.py", "vendor.py"]
    done = subprocess.run(
        check, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 0, done.stdout


def play(snippet: Token, directory: Path, page: str) -> None:
    """Write or run one block."""
    named = FILE_NAME.match(snippet.content)
    if named and snippet.info.startswith("python"):
        (directory / named["name"]).write_text(snippet.content)
    elif snippet.info.startswith("python"):
        execute(snippet, [sys.executable, "-c", snippet.content], directory, page)
    else:
        execute(snippet, ["bash", "-euo", "pipefail", "-c", snippet.content], directory, page)


def execute(snippet: Token, command: list[str], directory: Path, page: str) -> None:
    """Run a block as a user would who has the package installed and no settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("NIMBLE_")}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    output = directory / ".output"
    with output.open("wb") as file:
        process = subprocess.Popen(
            command,
            cwd=directory,
            env={**kept, "PATH": path, "HOME": str(directory), "XDG_DATA_HOME": str(directory)},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
        try:
            code: int | str = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            code = f"none within {LIMIT} s"
        finally:
            end(process)
    line = (snippet.map or [0])[0] + 1
    assert code == 0, f"{page} line {line}: exit code {code}\n{output.read_text()}"


def end(process: "subprocess.Popen[bytes]") -> None:
    """End everything the block started; a group that is gone already is as good."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    finally:
        process.wait()
