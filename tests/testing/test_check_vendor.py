"""`nimble-lifecycle check-vendor`: what it prints, and how it exits."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from nimble_lifecycle.testing.cli import main

ADAPTERS = Path(__file__).with_name("adapters")
DIRECTORY = f"{ADAPTERS.parents[1] / 'reconciler' / 'directory_vendor.py'}"
OBJECTS = f"{ADAPTERS / 'objects.py'}"


def ended(*arguments: str) -> int:
    """Run the command line and give its exit code."""
    with pytest.raises(SystemExit) as end:
        main(["check-vendor", *arguments])
    assert isinstance(end.value.code, int)
    return end.value.code


def started(*arguments: str, cwd: Path) -> "subprocess.Popen[str]":
    """Start the command line as a process."""
    code = "from nimble_lifecycle.testing.cli import main; main()"
    return subprocess.Popen(
        [sys.executable, "-c", code, "check-vendor", *arguments],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_a_sound_adapter_exits_0_with_a_table_of_every_check(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert ended(f"{OBJECTS}:sound") == 0
    shown = capsys.readouterr()
    lines = {line.split()[0]: line for line in shown.out.splitlines() if line.strip()}
    assert " ok" in lines["find-whole-key"]
    assert "it takes a Sandbox with occupy" in lines["name-taken"]
    assert shown.err == ""


def test_a_finding_exits_1_and_says_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(f"{OBJECTS}:secret_in_details") == 1
    [line] = [each for each in capsys.readouterr().out.splitlines() if "failed" in each]
    assert line.split()[:2] == ["details", "failed"]
    assert "put the secret into a secret store" in line


def test_json_holds_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    assert ended(f"{OBJECTS}:finds_nothing", "--json") == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["kind"], report["ok"], report["left_behind"]) == ("depot", False, [])
    found = {each["check"]: each for each in report["checks"]}
    assert found["find"]["verdict"] == "failed"
    assert "idempotency_key" in found["find"]["words"]
    assert found["declarations"] == {"check": "declarations", "verdict": "ok", "words": ""}


def test_what_is_left_behind_exits_1_and_is_listed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("stays.py").write_text(
        "from broken import NeverDone\n"
        "class Stays(NeverDone):\n"
        "    inventory = NeverDone.__mro__[-2].inventory\n"
    )
    assert ended("stays:Stays") == 1
    assert "left behind, remove it by hand: what was made under" in capsys.readouterr().out


def test_a_sandbox_params_and_limits_are_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("both.py").write_text(
        "from depot import Depot, DepotSandbox, Sound\n"
        "from pydantic import BaseModel\n"
        "class Plan(BaseModel):\n"
        "    size: int\n"
        "class Sized(Sound):\n"
        "    params_model = Plan\n"
        "depot = Depot()\n"
        "vendor = Sized(depot)\n"
        "class View(DepotSandbox):\n"
        "    def __init__(self):\n"
        "        super().__init__(depot)\n"
    )
    options = ["--params", '{"size": 1}', "--changed-params", '{"size": 2}', "--timeout", "20s"]
    assert ended("both:vendor", "--sandbox", "both:View", *options, "--crowd", "5") == 0
    assert "it takes a Sandbox" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "target requires an argument"),
        (["depot:Nothing"], "has no attribute"),
        (["depot:Depot"], "is no nimble_lifecycle.reconciler.Vendor"),
        (["depot:Sound", "--sandbox", "depot:Sound"], "is no nimble_lifecycle.testing.Sandbox"),
        (["depot:Sound", "--sandbox", "depot:DepotSandbox"], "without arguments"),
        (["depot:Sound", "--params", "[1]"], "--params must be a JSON object"),
        (["depot:Sound", "--changed-params", "size"], "--changed-params must be a JSON object"),
        (["depot:Sound", "--timeout", "soon"], "--timeout: not a duration"),
        (["depot:Sound", "--crowd", "0"], "--crowd"),
    ],
)
def test_wrong_use_exits_2_with_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert ended(*arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    [line] = shown.err.splitlines()
    assert line.startswith("nimble-lifecycle: ")
    assert said in line


def test_what_an_adapter_prints_stays_off_stdout(tmp_path: Path) -> None:
    (tmp_path / "noisy.py").write_text(
        "import os, subprocess, sys\n"
        "from depot import Sound\n"
        "print('import')\n"
        "class Noisy(Sound):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        subprocess.run([sys.executable, '-c', 'print(\\'child\\')'])\n"
        "    async def provision(self, tenancy):\n"
        "        print('provision')\n"
        "        os.write(1, b'descriptor\\n')\n"
        "        return await super().provision(tenancy)\n"
        "    async def inventory(self):\n"
        "        print('inventory')\n"
        "        async for each in super().inventory():\n"
        "            yield each\n"
        "vendor = Noisy()\n"
    )
    with started("noisy.py:vendor", "--json", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert json.loads(out)["ok"] is True, err
    assert {"import", "child", "provision", "descriptor", "inventory"} <= set(err.split())


def test_of_a_class_each_worker_has_an_object_of_its_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("alone.py").write_text(
        "from depot import Sound\n"
        "class Alone(Sound): ...\n"  # whose vendor is in the object
        "vendor = Alone()\n"
    )

    def next_worker(target: str) -> dict[str, str]:
        ended(target, "--json")
        checks = json.loads(capsys.readouterr().out)["checks"]
        return next(each for each in checks if each["check"] == "next-worker")

    assert next_worker("alone:Alone")["verdict"] == "warning"
    assert "name an object rather than the class" in next_worker("alone:Alone")["words"]
    assert next_worker("alone:vendor")["verdict"] == "not checked"
    Path("world").mkdir()
    assert next_worker(f"{DIRECTORY}:Unhurried")["verdict"] == "ok"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_ended_removes_what_it_made(tmp_path: Path, number: signal.Signals) -> None:
    (world := tmp_path / "world").mkdir()
    with started(f"{DIRECTORY}:Patient", cwd=tmp_path) as process:
        until = time.monotonic() + 60
        while not list(world.iterdir()) and time.monotonic() < until:
            time.sleep(0.02)
        assert list(world.iterdir())
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "interrupted" in err
    assert out == ""
    assert list(world.iterdir()) == []


def test_an_event_loop_that_is_never_given_back_ends_the_run_with_what_is_known(
    tmp_path: Path,
) -> None:
    (tmp_path / "blocking.py").write_text(
        "import time\n"
        "from datetime import timedelta\n"
        "from depot import Sound\n"
        "class Blocking(Sound):\n"
        "    time_limit = timedelta(seconds=0.1)\n"
        "    async def find(self, tenancy):\n"
        "        time.sleep(600)\n"
    )
    with started("blocking:Blocking", cwd=tmp_path) as process:
        out, err = process.communicate(timeout=120)
    assert process.returncode == 1
    lines = out.splitlines()
    assert any(line.split()[:2] == ["provision", "ok"] for line in lines)
    assert any(line.split()[:2] == ["event-loop", "failed"] and "find" in line for line in lines)
    assert "could not be removed" in err
