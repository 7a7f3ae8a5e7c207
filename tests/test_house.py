"""The house rules at run time: what an import loads, and what the public names promise.

import-linter holds the same for the source; here the modules that are really loaded count.
"""

import inspect
import json
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import nimble_lifecycle

ROOT = Path(nimble_lifecycle.__file__).parent
ROOMS = [
    "nimble_lifecycle",
    *sorted(f"nimble_lifecycle.{p.parent.name}" for p in ROOT.glob("*/__init__.py")),
]
DATABASE = {"sqlalchemy", "sqlmodel", "alembic", "psycopg"}
FASTMCP = {"fastmcp", "mcp"}
HTTP = {"httpx2", "httpx", "starlette"}
OTHER_ROOMS = {"server", "sdk", "core", "reconciler", "manifest", "store", "testing"}


def room(*names: str) -> set[str]:
    return {f"nimble_lifecycle.{name}" for name in names}


def loaded_by(statement: str) -> set[str]:
    """Give every module, and every package above it, that a fresh interpreter has loaded."""
    code = f"{statement}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.mark.parametrize(
    ("statement", "absent"),
    [
        ("import nimble_lifecycle", DATABASE | FASTMCP | HTTP | room(*OTHER_ROOMS) | {"tenacity"}),
        (
            "from nimble_lifecycle import Phase, Reason, Tenancy, Workspace",
            DATABASE | FASTMCP | HTTP | room(*OTHER_ROOMS) | {"tenacity"},
        ),
        (
            "from nimble_lifecycle import Lifecycle, NotReady",
            DATABASE | room("sdk", "reconciler", "manifest", "testing") | {"tenacity"},
        ),
        (
            "from nimble_lifecycle.sdk import Lifecycle, NotReady",
            {"fastmcp", "tenacity"}
            | DATABASE
            | room("server", "reconciler", "manifest", "store", "testing"),
        ),
        (
            "import nimble_lifecycle.core.serving",
            FASTMCP
            | DATABASE
            | room("server", "sdk", "reconciler", "manifest", "store", "testing"),
        ),
        (
            "import nimble_lifecycle.store",
            FASTMCP | room("server", "sdk", "core", "reconciler", "manifest", "testing"),
        ),
        (
            "import nimble_lifecycle.reconciler",
            FASTMCP | HTTP | DATABASE | room("server", "sdk", "core", "manifest", "testing"),
        ),
        (
            "import nimble_lifecycle.reconciler.cli",
            FASTMCP | room("server", "sdk", "core", "manifest", "testing"),
        ),
        ("import nimble_lifecycle.testing", FASTMCP | room("server", "sdk", "core", "manifest")),
        (
            "import nimble_lifecycle.manifest.cli",
            DATABASE | room("server", "sdk", "core", "reconciler", "store", "testing"),
        ),
    ],
)
def test_importing_one_half_never_loads_another(statement, absent):
    assert loaded_by(statement) & absent == set()


@pytest.mark.parametrize("name", ROOMS)
def test_public_names_exist_once_and_say_what_they_are(name):
    module = import_module(name)
    assert inspect.getdoc(module)
    public = getattr(module, "__all__", [])
    assert len(set(public)) == len(public)
    assert set(public) <= set(dir(module))
    undocumented = [word for word in public if not documented(getattr(module, word))]
    assert undocumented == []


def documented(value: object) -> bool:
    """Say whether a class or function, and each public method of ours, has its own docstring."""
    if not inspect.isclass(value):
        return bool(inspect.getdoc(value)) if inspect.isroutine(value) else True
    methods = [
        member
        for name, member in vars(value).items()
        if inspect.isroutine(member) and not name.startswith("_")
    ]
    return bool(vars(value).get("__doc__")) and all(inspect.getdoc(method) for method in methods)


def test_a_name_that_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        _ = nimble_lifecycle.Nothing


def test_the_version_stands_in_one_place():
    project = tomllib.loads((ROOT.parent / "pyproject.toml").read_text())
    assert "version" not in project["project"]
    assert project["tool"]["hatch"]["version"]["path"] == "nimble_lifecycle/__init__.py"
    assigning = [p for p in ROOT.rglob("*.py") if "\n__version__ = " in p.read_text()]
    assert assigning == [ROOT / "__init__.py"]
