"""What reaches stdout of a command: its data, and nothing that an author's code prints."""

import subprocess
import sys
from pathlib import Path

import pytest

from nimble_lifecycle.stdout import data_to_stdout

NOISY = """
from nimble_lifecycle.stdout import data_to_stdout
from nimble_lifecycle.target import load_target

with data_to_stdout():
    print("data")
    load_target("noise.py:noise")
    print("more data")
"""
NOISE = """
import atexit, os, subprocess, sys
noise = [subprocess.run([sys.executable, "-c", "print('child')"])]
os.write(1, b"descriptor\\n")
sys.__stdout__.write("stream\\n")
atexit.register(print, "exit")
"""


def noisy(tmp_path: Path, redirection: str = "") -> "subprocess.CompletedProcess[str]":
    (tmp_path / "noise.py").write_text(NOISE)
    (tmp_path / "noisy.py").write_text(NOISY)
    return subprocess.run(
        ["sh", "-c", f'"$0" noisy.py {redirection}', sys.executable],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_only_data_goes_to_stdout_whatever_a_target_writes_there(tmp_path: Path) -> None:
    done = noisy(tmp_path)
    assert (done.returncode, done.stdout) == (0, "data\nmore data\n")
    assert sorted(done.stderr.split()) == ["child", "descriptor", "exit", "stream"]


def test_noise_goes_nowhere_where_stderr_is_closed(tmp_path: Path) -> None:
    done = noisy(tmp_path, "2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (0, "data\nmore data\n", "")


def test_a_stdout_that_is_captured_is_let_be(capsys: pytest.CaptureFixture[str]) -> None:
    stdout = sys.stdout
    with data_to_stdout():
        assert sys.stdout is stdout
        sys.stdout.write("data\n")
    assert capsys.readouterr().out == "data\n"


def test_whoever_has_seen_enough_ends_the_command_quietly(tmp_path: Path) -> None:
    done = noisy(tmp_path, "| true")
    assert "Traceback" not in done.stderr
