"""The built wheel, installed where nothing of the checkout can be seen."""

import os
import subprocess
import sys
import sysconfig
import venv
from collections.abc import Sequence
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).parents[1]
COMMANDS = ["nimble-lifecycle", "nimble-manifest", "nimble-reconcile"]


def run(*command: str | Path, cwd: Path) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel with the build backend that is installed here."""
    out = tmp_path_factory.mktemp("wheel")
    run(
        *(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", out, ROOT),
        cwd=out,
    )
    [built] = out.glob("*.whl")
    return built


def check_installed(bin_directory: Path, cwd: Path) -> None:
    """Use the commands and the package of an environment, in an empty directory."""
    for command in COMMANDS:
        assert command in run(bin_directory / command, "--help", cwd=cwd)
    code = "import nimble_lifecycle as n; n.Lifecycle; print(n.__file__)"
    place = run(bin_directory / "python", "-c", code, cwd=cwd).strip()
    assert Path(place).is_relative_to(bin_directory.parent)
    url = f"sqlite:///{cwd / 'nimble.db'}"
    run(bin_directory / "nimble-reconcile", "migrate", "--database-url", url, cwd=cwd)
    assert (cwd / "nimble.db").exists()


def test_the_wheel_holds_the_migrations_the_type_marker_and_nothing_else(wheel):
    names: Sequence[str] = ZipFile(wheel).namelist()
    assert "nimble_lifecycle/py.typed" in names
    for source in (ROOT / "nimble_lifecycle").rglob("*.py"):
        assert source.relative_to(ROOT).as_posix() in names
    assert any(name.startswith("nimble_lifecycle/store/migrations/") for name in names)
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.split("/")[0].split("-")[0] for name in names} == {"nimble_lifecycle"}


def test_the_wheel_works_without_the_checkout(wheel, tmp_path):
    """The dependencies are lent by this environment; its editable install is not."""
    home = tmp_path / "venv"
    venv.create(home, symlinks=True)
    python = home / "bin" / "python"
    lend = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check"]
    run(*lend, "install", "--quiet", "--no-deps", "--no-index", wheel, cwd=tmp_path)
    [site] = home.glob("lib/python*/site-packages")
    # A path in a .pth file is searched, but the .pth files in it are not read.
    (site / "lent.pth").write_text(sysconfig.get_path("purelib") + "\n")
    check_installed(home / "bin", tmp_path)


@pytest.mark.slow
def test_the_wheel_installs_with_its_declared_dependencies_only(wheel, tmp_path):
    home = tmp_path / "venv"
    venv.create(home, symlinks=True, with_pip=True)
    run(home / "bin" / "python", "-m", "pip", "install", "--quiet", wheel, cwd=tmp_path)
    check_installed(home / "bin", tmp_path)
