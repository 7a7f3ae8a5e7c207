"""`nimble-manifest` as a build calls it: files in, file and exit code out."""

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest
import yaml
from fastmcp import Client

from nimble_lifecycle.manifest.cli import main
from nimble_lifecycle.protocol import HOST_ID

SCHEMAS = Path(__file__).parents[2].parent / "shared" / "schemas"
SERVER = """
from __future__ import annotations

from dataclasses import dataclass

from fastmcp import FastMCP

print("imported")
mcp = FastMCP("acme")
not_a_server = 3

@dataclass
class Campaign:
    name: str

@mcp.tool(meta={"ai.nimblebrain/lifecycle": {"event": "ready"}})
def workspace_ready(reason: str = "resume") -> str:
    return reason

@mcp.tool(meta={"ai.nimblebrain/lifecycle": {"event": "removing"}})
def workspace_removing() -> str:
    return ""

plain = FastMCP("plain")
twice = FastMCP("twice")
twice.mount(mcp, namespace="a")
twice.mount(mcp, namespace="b")
"""
REFUSED = """
from fastmcp import FastMCP
from nimble_lifecycle import Lifecycle

def made(name: str) -> FastMCP:
    mcp = FastMCP(name)
    Lifecycle(mcp).on_ready(name="workspace_ready")(lambda: "up")
    return mcp

def replaced():
    mcp = made("acme")
    mcp.tool(lambda: "mine", name="workspace_ready")
    return mcp

def replaced_on_a_mount():
    parent = FastMCP("parent")
    parent.mount(replaced(), namespace="mail")
    return parent

def two_of_a_name():
    parent = FastMCP("parent")
    parent.mount(made("one"))
    parent.mount(made("two"))
    return parent

def mounted_twice():
    parent, acme = FastMCP("parent"), made("acme")
    parent.mount(acme)
    parent.mount(acme)
    return parent

def one_of_two_hidden():
    parent, two = FastMCP("parent"), made("two")
    two.disable(names={"workspace_ready"})
    parent.mount(made("one"), namespace="one")
    parent.mount(two, namespace="two")
    return parent
"""
WITH_LIFECYCLE = """
from fastmcp import FastMCP
from nimble_lifecycle import Lifecycle

mcp = FastMCP("acme")
lifecycle = Lifecycle(mcp)

@lifecycle.on_ready
def workspace_ready(tenancy, reason) -> str:
    return ""

@lifecycle.on_removing(name="goodbye")
async def workspace_removing() -> str:
    return ""
"""
MANIFEST = {
    "manifest_version": "0.3",
    "name": "acme-outreach",
    "version": "1.0.0",
    "description": "Campaigns für alle",
    "author": {"name": "Acme"},
    "_meta": {
        "dev.mpak/registry": {"score": 1},
        HOST_ID: {"host_version": "1.5", "name": "Acme", "placements": []},
    },
    "server": {
        "type": "python",
        "entry_point": "server.py",
        "mcp_config": {"command": "python", "args": ["server.py"]},
    },
}
ENTRY = {"name": "io.acme/outreach", "description": "Campaigns", "version": "1.0.0"}
NAMES = {"on_ready": "workspace_ready", "on_removing": "workspace_removing"}


@pytest.fixture(autouse=True)
def project(tmp_path, monkeypatch, own_imports) -> Path:
    """Make a project with a server and a manifest the working directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "server.py").write_text(SERVER)
    save(MANIFEST)
    return tmp_path


def save(manifest: object) -> None:
    text = json.dumps(manifest, indent=2, ensure_ascii=False)
    Path("manifest.json").write_text(text + "\n", encoding="utf-8")


def load() -> dict:
    return json.loads(Path("manifest.json").read_bytes())


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return ended.value.code


def with_block(block: dict, **fields: object) -> dict:
    return {**MANIFEST, **fields, "_meta": {**MANIFEST["_meta"], HOST_ID: block}}


@pytest.mark.parametrize("target", ["server.py:mcp", "server:mcp", "./server.py:mcp"])
def test_write_adds_the_names_and_check_is_then_content(target):
    assert run("check", target) == 1
    assert run("write", target) == 0
    assert load() == with_block({**MANIFEST["_meta"][HOST_ID], "lifecycle": NAMES})
    assert run("check", target) == 0


def test_write_changes_lines_of_its_own_only():
    before = Path("manifest.json").read_bytes().splitlines()
    run("write", "server.py:mcp")
    after = Path("manifest.json").read_bytes().splitlines()
    added = [line for line in after if line not in before]
    assert [line.strip() for line in added] == [
        b'"placements": [],',
        b'"lifecycle": {',
        b'"on_ready": "workspace_ready",',
        b'"on_removing": "workspace_removing"',
        b"}",
    ]


def test_a_manifest_without_meta_gets_the_whole_block():
    save({key: value for key, value in MANIFEST.items() if key != "_meta"})
    assert run("write", "server.py:mcp") == 0
    assert load()["_meta"] == {HOST_ID: {"host_version": "1.0", "lifecycle": NAMES}}


def test_an_existing_host_version_is_never_changed():
    save(with_block({"host_version": "0.9"}))
    run("write", "server.py:mcp")
    assert load()["_meta"][HOST_ID]["host_version"] == "0.9"


def test_names_are_corrected_and_foreign_keys_of_the_block_stay():
    stale = {"on_ready": "old", "on_upgraded": "theirs"}
    save(with_block({"host_version": "1.0", "lifecycle": stale}))
    assert run("write", "server.py:mcp") == 0
    assert load()["_meta"][HOST_ID]["lifecycle"] == {**stale, **NAMES}


def test_names_whose_handlers_are_gone_are_removed():
    block = {"host_version": "1.0", "name": "Acme", "lifecycle": NAMES}
    save(with_block(block))
    assert run("check", "server.py:plain") == 1
    assert run("write", "server.py:plain") == 0
    assert load() == with_block({"host_version": "1.0", "name": "Acme"})
    assert run("check", "server.py:plain") == 0


def test_one_name_that_is_gone_is_removed_alone():
    save(with_block({"host_version": "1.0", "lifecycle": {"on_ready": "x", "theirs": "y"}}))
    assert run("write", "server.py:plain") == 0
    assert load()["_meta"][HOST_ID]["lifecycle"] == {"theirs": "y"}


def test_a_server_without_handlers_leaves_a_manifest_without_block_alone(capsys):
    save(with_block({"name": "Acme"}))
    before = Path("manifest.json").read_bytes()
    assert run("write", "server.py:plain") == 0
    assert Path("manifest.json").read_bytes() == before
    assert "marks no tool as a lifecycle handler" in capsys.readouterr().err
    assert run("check", "server.py:plain") == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "in line (server.py:plain marks no tool as a lifecycle handler" in shown.err


def test_the_handlers_of_a_lifecycle_are_found_and_no_database_is_made(project, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(project / "data"))
    monkeypatch.delenv("NIMBLE_DATABASE_URL", raising=False)
    Path("with_lifecycle.py").write_text(WITH_LIFECYCLE)
    assert run("write", "with_lifecycle.py:mcp") == 0
    names = {"on_ready": "workspace_ready", "on_removing": "goodbye"}
    assert load()["_meta"][HOST_ID]["lifecycle"] == names
    assert not (project / "data").exists()


def test_line_ends_and_mode_survive_and_no_file_is_left_behind():
    path = Path("manifest.json")
    path.write_bytes(path.read_bytes().rstrip().replace(b"\n", b"\r\n"))
    path.chmod(0o640)
    run("write", "server.py:mcp")
    written = path.read_bytes()
    assert written.count(b"\n") == written.count(b"\r\n")
    assert written.endswith(b"}")
    assert "für".encode() in written
    assert path.stat().st_mode & 0o777 == 0o640
    assert {entry.name for entry in Path().iterdir()} - {"__pycache__"} == {
        "manifest.json",
        "server.py",
    }


def test_a_second_write_does_not_touch_the_file(capsys):
    run("write", "server.py:mcp")
    before = Path("manifest.json").stat()
    assert run("write", "server.py:mcp") == 0
    after = Path("manifest.json").stat()
    assert (after.st_ino, after.st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    assert "already in line" in capsys.readouterr().err


def test_a_symbolic_link_stays_one():
    Path("manifest.json").rename("real.json")
    Path("manifest.json").symlink_to("real.json")
    run("write", "server.py:mcp")
    assert Path("manifest.json").is_symlink()
    assert load()["_meta"][HOST_ID]["lifecycle"] == NAMES


@pytest.mark.parametrize("command", ["write", "check"])
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"manifest_version": "0.2"}, "manifest_version: 0.2 does not allow _meta"),
        ({"manifest_version": "0.1"}, "manifest_version: 0.1 does not allow _meta"),
        ({"dxt_version": "0.2"}, "dxt_version: 0.2 does not allow _meta"),
        ({"manifest_version": "new"}, "manifest_version: 'new' is not a version"),
        ({"manifest_version": 0.3}, "manifest_version: 0.3 is not text; quote it"),
        ({"_meta": []}, "_meta: [] is no object; make it one or remove it"),
        ({"_meta": None}, "_meta: null is no object; make it one or remove it"),
        (
            {"_meta": {HOST_ID: {"host_version": 1.5}}},
            f"_meta.{HOST_ID}.host_version: 1.5 is not text; quote it",
        ),
        (
            {"_meta": {HOST_ID: {"host_version": None}}},
            f"_meta.{HOST_ID}.host_version: must be text; write it in quotes, or remove it",
        ),
        (
            {"_meta": {HOST_ID: {"lifecycle": None}}},
            f"_meta.{HOST_ID}.lifecycle: null is no object; make it one or remove it",
        ),
    ],
)
def test_a_manifest_that_cannot_carry_the_block_is_refused(command, fields, words, capsys):
    save({**MANIFEST, **fields})
    before = Path("manifest.json").read_bytes()
    assert run(command, "server.py:mcp") == 1
    assert Path("manifest.json").read_bytes() == before
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith(f"manifest.json: {words}")


@pytest.mark.parametrize("command", ["write", "check"])
def test_handlers_that_hosts_would_refuse_are_never_written(command, capsys):
    before = Path("manifest.json").read_bytes()
    assert run(command, "server.py:twice") == 1
    assert Path("manifest.json").read_bytes() == before
    assert capsys.readouterr().out.splitlines() == [
        f'event "{event}" is marked on "a_workspace_{event}", "b_workspace_{event}": '
        "hosts call none; keep one"
        for event in ("ready", "removing")
    ]


@pytest.mark.parametrize("command", ["write", "check", "print"])
@pytest.mark.parametrize(
    ("factory", "words"),
    [
        (
            "replaced",
            'tool "workspace_ready" of "acme" replaced the lifecycle handler of that name',
        ),
        ("replaced_on_a_mount", 'tool "workspace_ready" of "acme" replaced the lifecycle handler'),
        ("two_of_a_name", 'marked on "workspace_ready" of "one", "workspace_ready" of "two", seen'),
        ("mounted_twice", 'is marked on "workspace_ready" of "acme", "workspace_ready" of "acme"'),
        ("one_of_two_hidden", 'on "workspace_ready" of "one", "workspace_ready" of "two", seen'),
    ],
)
def test_a_server_that_refuses_to_start_is_refused_here_too(command, factory, words, capsys):
    Path("refused.py").write_text(REFUSED)
    before = Path("manifest.json").read_bytes()
    assert run(command, f"refused.py:{factory}") == 1
    assert Path("manifest.json").read_bytes() == before
    out, err = capsys.readouterr()
    said = err if command == "print" else out
    assert said.count(words) == 1


@pytest.mark.parametrize("factory", ["replaced", "two_of_a_name", "one_of_two_hidden"])
def test_what_is_refused_here_does_not_start(factory, monkeypatch, project):
    monkeypatch.setenv("NIMBLE_DATABASE_URL", f"sqlite:///{project}/rows.db")
    scope: dict = {}
    exec(REFUSED, scope)

    async def start() -> None:
        async with Client(scope[factory]()):
            pass

    with pytest.raises(RuntimeError, match=r"Two tools answer|has another tool named"):
        asyncio.run(start())


@pytest.mark.parametrize("command", ["write", "check"])
def test_no_name_is_removed_while_a_part_of_the_server_is_down(command, capsys):
    save(with_block({"host_version": "1.0", "lifecycle": NAMES}))
    before = Path("manifest.json").read_bytes()
    Path("gateway.py").write_text(
        "from fastmcp import FastMCP\nfrom fastmcp.server import create_proxy\n"
        "mcp = FastMCP('gateway')\n"
        "mcp.mount(create_proxy('http://127.0.0.1:9/mcp', name='remote'), namespace='far')\n"
    )
    assert run(command, "gateway.py:mcp") == 2
    assert Path("manifest.json").read_bytes() == before
    said = capsys.readouterr().err
    assert "no name is removed from manifest.json while a part of gateway.py:mcp does not" in said
    assert 'ProxyProvider() of "remote": ' in said


def test_check_prints_a_line_per_finding_that_says_what_to_do(capsys):
    save(with_block({"lifecycle": {"on_ready": "old"}}))
    assert run("check", "server.py:mcp") == 1
    repair = "run nimble-manifest write server.py:mcp --manifest manifest.json"
    assert capsys.readouterr().out.splitlines() == [
        f'manifest.json: host_version is missing, must be "1.0"; {repair}',
        f'manifest.json: on_ready is "old", must be "workspace_ready"; {repair}',
        f'manifest.json: on_removing is missing, must be "workspace_removing"; {repair}',
    ]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("server.py", "'server.py' names no object: write module:attr or file.py:attr"),
        ("nowhere.py:mcp", "cannot import nowhere.py: FileNotFoundError"),
        ("nowhere:mcp", "cannot import nowhere: ModuleNotFoundError"),
        ("server.py:nothing", "server.py has no attribute 'nothing'"),
        ("server.py:not_a_server", "server.py:not_a_server is a int, neither a FastMCP server"),
        ("exits.py:mcp", "cannot import exits.py: SystemExit: bye"),
        ("broken.py:mcp", "cannot import broken.py: SyntaxError"),
        ("silent.py:mcp", "cannot import silent.py: ValueError"),
    ],
)
def test_a_target_that_cannot_be_used_is_one_line_and_exit_code_two(target, words, capsys):
    Path("exits.py").write_text("import sys; sys.exit('bye')")
    Path("broken.py").write_text("def")
    Path("silent.py").write_text("raise ValueError")
    assert run("check", target) == 2
    out, err = capsys.readouterr()
    assert out == ""
    [line] = [line for line in err.splitlines() if line != "imported"]
    assert line.startswith(f"nimble-manifest: {words}")


@pytest.mark.parametrize("content", [None, b"{", b"[]", b"\xff", b'{"a": 1} x'])
def test_a_file_that_is_no_manifest_is_one_line_and_exit_code_two(content, capsys):
    Path("manifest.json").unlink()
    if content is not None:
        Path("manifest.json").write_bytes(content)
    assert run("write", "server.py:mcp") == 2
    [line] = [line for line in capsys.readouterr().err.splitlines() if line != "imported"]
    assert line.startswith("nimble-manifest: ")
    assert "manifest.json" in line


NO_MANIFESTS = {
    "nothing": ({}, "it has no text for name, description, version)"),
    "package.json": (
        {"name": "acme", "description": "Campaigns", "version": "1.0.0"},
        "it has a name that is not like io.github.user/tool)",
    ),
    "incomplete entry": ({**ENTRY, "version": 1.0}, "it has no text for version)"),
    "registry answer": ({"server": ENTRY, "_meta": {}}, "write what is under server to a file"),
    "list of answers": (
        {"servers": [{"server": ENTRY}]},
        "servers.0 is an answer of a registry",
    ),
    "empty catalog": ({"servers": []}, "has 0 servers: name one with --entry: none"),
    "catalog of texts": ({"servers": ["x"]}, "cat.json.servers.0 is neither an MCPB manifest"),
}


@pytest.mark.parametrize("command", ["write", "check"])
@pytest.mark.parametrize("kind", NO_MANIFESTS)
def test_a_file_where_no_host_looks_is_wrong_use_and_stays(command, kind, capsys):
    content, words = NO_MANIFESTS[kind]
    Path("cat.json").write_text(json.dumps(content))
    assert run(command, "server.py:mcp", "--manifest", "cat.json") == 2
    assert Path("cat.json").read_text() == json.dumps(content)
    out, err = capsys.readouterr()
    [line] = [line for line in err.splitlines() if line != "imported"]
    assert (out, words in line) == ("", True), line


def test_wrong_arguments_are_exit_code_two(capsys):
    assert run("write") == 2
    assert run("write", "server.py:mcp", "--nothing") == 2
    assert capsys.readouterr().out == ""


def test_the_command_keeps_what_the_server_prints_off_stdout(project):
    environment = {**os.environ, "NIMBLE_DATABASE_URL": "postgresql://nobody@127.0.0.1:1/none"}
    code = "from nimble_lifecycle.manifest.cli import main; main(['write', 'server.py:mcp'])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert done.stdout == ""
    assert done.stderr.splitlines()[0] == "imported"
    assert load()["_meta"][HOST_ID]["lifecycle"] == NAMES


NOISY = """
import atexit, os, subprocess, sys
subprocess.run(["echo", "child"])
os.write(1, b"descriptor\\n")
sys.__stdout__.write("stream\\n")
atexit.register(print, "exit")
from server import mcp
"""


@pytest.mark.parametrize("arguments", [["print"], ["check", "--json"], ["write", "--json"]])
def test_stdout_is_json_whatever_the_server_writes_there(project, arguments):
    Path("noisy.py").write_text(NOISY)
    command, *options = arguments
    code = "from nimble_lifecycle.manifest.cli import main; main()"
    done = subprocess.run(
        [sys.executable, "-c", code, command, "noisy.py:mcp", *options],
        cwd=project,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert json.loads(done.stdout)["lifecycle"] == NAMES
    assert {"child", "descriptor", "stream", "exit"} <= set(done.stderr.split())


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason=f"the published schemas are not in {SCHEMAS}")
@pytest.mark.parametrize("version", ["0.3", "0.4"])
def test_what_is_written_satisfies_the_published_schemas(version):
    save({**MANIFEST, "manifest_version": version})
    run("write", "server.py:mcp")
    manifest = load()
    for name, part in [
        (f"mcpb-manifest-v{version}", manifest),
        ("nimblebrain-host", manifest["_meta"][HOST_ID]),
    ]:
        schema = json.loads((SCHEMAS / f"{name}.schema.json").read_text())
        jsonschema.validate(part, schema)


SERVER_DETAIL = """\
# Acme's entry in the catalog
$schema: https://static.modelcontextprotocol.io/schemas/draft/server.schema.json
name: io.acme/outreach  # reverse DNS
description: Campaigns
version: 1.0.0
_meta:
  ai.nimblebrain/host: {host_version: "1.4"}
"""


def test_a_catalog_entry_in_yaml_keeps_its_comments():
    path = Path("entry.yaml")
    path.write_text(SERVER_DETAIL)
    assert run("write", "server.py:mcp", "--manifest", "entry.yaml") == 0
    text = path.read_text()
    block = "lifecycle: {on_ready: workspace_ready, on_removing: workspace_removing}"
    assert text == SERVER_DETAIL.replace('"1.4"}', f'"1.4", {block}}}')
    assert run("check", "server.py:mcp", "--manifest", "entry.yaml") == 0


CATALOG = """\
servers:
  # Somebody's
  - name: io.other/tool
    description: Theirs
    version: 2.0.0
    _meta: {ai.nimblebrain/host: {host_version: "1.0", lifecycle: {on_ready: theirs}}}
  - name: io.acme/outreach  # ours
    description: Campaigns
    version: 1.0.0
    packages: []
  - name: io.other/last
    description: Theirs
    version: 3.0.0
"""
BLOCK_IN_CATALOG = """\
    _meta:
      "ai.nimblebrain/host":
        host_version: "1.0"
        lifecycle:
          on_ready: workspace_ready
          on_removing: workspace_removing
"""


def test_one_server_of_a_catalog_gets_the_block_and_the_others_stay(capsys):
    path = Path("catalog.yaml")
    path.write_text(CATALOG)
    ours = ("--manifest", "catalog.yaml", "--entry", "io.acme/outreach")
    assert run("check", "server.py:mcp", *ours) == 1
    assert f"run nimble-manifest write server.py:mcp {' '.join(ours)}\n" in capsys.readouterr().out
    assert run("write", "server.py:mcp", *ours) == 0
    after = "    packages: []\n"
    assert path.read_text() == CATALOG.replace(after, after + BLOCK_IN_CATALOG)
    assert run("check", "server.py:mcp", *ours) == 0
    assert run("write", "server.py:plain", *ours) == 0
    assert yaml.safe_load(path.read_text())["servers"][0] == yaml.safe_load(CATALOG)["servers"][0]
    assert "on_ready: workspace_ready" not in path.read_text()


def test_the_only_server_of_a_catalog_needs_no_entry():
    before = json.dumps({"servers": [ENTRY], "theirs": [1, {"a": 2}]}, indent=4)
    Path("catalog.json").write_text(before)
    assert run("write", "server.py:mcp", "--manifest", "catalog.json") == 0
    block = {"host_version": "1.0", "lifecycle": NAMES}
    after = {"servers": [{**ENTRY, "_meta": {HOST_ID: block}}], "theirs": [1, {"a": 2}]}
    assert Path("catalog.json").read_text() == json.dumps(after, indent=4)
    assert run("write", "server.py:plain", "--manifest", "catalog.json") == 0
    assert "workspace_ready" not in Path("catalog.json").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["catalog.yaml"], "has 3 servers: name one with --entry: io.other/tool, io.acme/outreach"),
        (["catalog.yaml", "--entry", "io.x/y"], "has 0 servers named io.x/y: its names are io.oth"),
        (["manifest.json", "--entry", "x"], "has no list of servers: leave out --entry x"),
    ],
)
def test_a_server_that_is_not_found_in_a_catalog_is_wrong_use(arguments, words, capsys):
    Path("catalog.yaml").write_text(CATALOG)
    assert run("write", "server.py:mcp", "--manifest", *arguments) == 2
    assert words in capsys.readouterr().err
    assert Path("catalog.yaml").read_text() == CATALOG


@pytest.mark.parametrize(
    "meta",
    [
        "_meta: &m {theirs: {a: 1}}\nz: *m\n",
        '_meta: {ai.nimblebrain/host: {host_version: &v "1.0"}}\nz: *v\n',
        "_meta: {ai.nimblebrain/host: {lifecycle: {on_ready: &v old}}}\nz: *v\n",
    ],
)
def test_a_block_that_an_alias_shows_elsewhere_too_is_not_written(meta, capsys):
    text = f"name: io.acme/outreach\ndescription: Campaigns\nversion: 1.0.0\n{meta}"
    Path("entry.yaml").write_text(text)
    written = run("write", "server.py:mcp", "--manifest", "entry.yaml", "--host-version", "1.5")
    assert written == 2
    assert "cannot be written in place" in capsys.readouterr().err
    assert Path("entry.yaml").read_text() == text


def test_a_byte_order_mark_at_the_beginning_stays():
    path = Path("manifest.json")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert run("write", "server.py:mcp") == 0
    written = path.read_bytes().decode()
    assert json.loads(written.removeprefix("\ufeff"))["_meta"][HOST_ID]["lifecycle"] == NAMES
    assert written.startswith('\ufeff{\n  "manifest_version"')
    assert run("check", "server.py:mcp") == 0


@pytest.mark.skipif(not SCHEMAS.is_dir(), reason=f"the published schemas are not in {SCHEMAS}")
def test_what_is_written_into_a_catalog_entry_satisfies_the_registrys_schema():
    schema = json.loads((SCHEMAS / "mcp-server-detail.schema.json").read_text())
    path = Path("entry.yaml")
    path.write_text(SERVER_DETAIL)
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)
    run("write", "server.py:mcp", "--manifest", "entry.yaml")
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)


def test_a_host_version_is_raised_and_never_lowered():
    save(with_block({"host_version": "1.2", "lifecycle": NAMES}))
    assert run("check", "server.py:mcp", "--host-version", "1.5") == 1
    for asked, then in [("1.5", "1.5"), ("1.4", "1.5"), ("1.10", "1.10")]:
        assert run("write", "server.py:mcp", "--host-version", asked) == 0
        assert load()["_meta"][HOST_ID]["host_version"] == then
    save({**MANIFEST, "_meta": {}})
    assert run("write", "server.py:mcp", "--host-version", "1.3") == 0
    assert load()["_meta"][HOST_ID]["host_version"] == "1.3"


def test_a_host_version_that_is_none_is_wrong_use(capsys):
    assert run("write", "server.py:mcp", "--host-version", "new") == 2
    assert "'new' is no version" in capsys.readouterr().err


def test_a_version_of_a_host_yet_unknown_is_kept():
    save(with_block({"host_version": "next", "lifecycle": NAMES}))
    assert run("check", "server.py:mcp", "--host-version", "1.5") == 0


def test_a_value_of_meta_that_is_no_object_is_refused_as_mcpb_does(capsys):
    save({**MANIFEST, "_meta": {"theirs": "text"}})
    assert run("write", "server.py:mcp") == 1
    assert capsys.readouterr().out.startswith('manifest.json: _meta.theirs: "text" is no obj')


def test_a_handler_that_only_the_manifest_names_is_a_finding_and_stays(capsys):
    save(with_block({"host_version": "1.0", "lifecycle": {"on_ready": "setup"}}))
    Path("by_hand.py").write_text(
        "from fastmcp import FastMCP\nmcp = FastMCP('hand')\n"
        "@mcp.tool\ndef setup(reason: str = '') -> str: return ''\n"
    )
    before = Path("manifest.json").read_bytes()
    assert run("write", "by_hand.py:mcp") == 1
    assert Path("manifest.json").read_bytes() == before
    [line] = capsys.readouterr().out.splitlines()
    assert line.startswith('manifest.json: on_ready names "setup", which is listed but not marked')


def test_print_gives_the_block_and_needs_no_file(capsys):
    Path("manifest.json").unlink()
    assert run("print", "server.py:mcp") == 0
    out = capsys.readouterr().out
    assert json.loads(out) == {"host_version": "1.0", "lifecycle": NAMES}
    assert run("print", "server.py:mcp", "--host-version", "1.5") == 0
    assert json.loads(capsys.readouterr().out)["host_version"] == "1.5"
    assert run("print", "server.py:mcp", "--host-version", "new") == 2


def test_findings_as_json(capsys):
    assert run("check", "server.py:mcp", "--json") == 1
    said = json.loads(capsys.readouterr().out)
    assert said["lifecycle"] == NAMES
    assert [finding["file"] for finding in said["findings"]] == ["manifest.json"] * 2
    assert run("write", "server.py:mcp", "--json") == 0
    assert json.loads(capsys.readouterr().out)["findings"] == []


def test_findings_as_annotations_of_github_actions(capsys):
    Path("a,b").mkdir()
    Path("manifest.json").rename("a,b/manifest.json")
    assert run("check", "server.py:mcp", "--manifest", "a,b/manifest.json", "--github") == 1
    first, _ = capsys.readouterr().out.splitlines()
    assert first.startswith('::error file=a%2Cb/manifest.json::on_ready is missing, must be "work')


FACTORIES = """
from server import mcp

def plain():
    print("made")
    return mcp

async def later():
    return mcp

def broken():
    raise ValueError("no credential")

def nothing():
    return 3
"""


@pytest.mark.parametrize("factory", ["plain", "later"])
def test_a_function_that_makes_the_server_is_called(factory, capsys):
    Path("factories.py").write_text(FACTORIES)
    assert run("print", f"factories.py:{factory}") == 0
    assert json.loads(capsys.readouterr().out)["lifecycle"] == NAMES


SDK = """
from mcp.server import MCPServer
from nimble_lifecycle.sdk import Lifecycle

lifecycle = Lifecycle()
lifecycle.on_ready(name="workspace_ready")(lambda: "up")
lifecycle.on_removing(name="workspace_removing")(lambda: "down")
mcp = MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan())

def twice():
    mcp.add_tool(lambda: "", name="mine", meta={"ai.nimblebrain/lifecycle": {"event": "ready"}})
    return mcp
"""


def test_a_server_of_the_sdk_is_asked_as_well(capsys):
    Path("sdk_server.py").write_text(SDK)
    assert run("write", "sdk_server.py:mcp") == 0
    assert json.loads(Path("manifest.json").read_text())["_meta"][HOST_ID]["lifecycle"] == NAMES
    assert run("check", "sdk_server.py:mcp") == 0
    capsys.readouterr()
    assert run("check", "sdk_server.py:twice") == 1
    assert 'is marked on "workspace_ready", "mine"' in capsys.readouterr().out


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("broken", "factories.py:broken makes no server: ValueError: no credential"),
        ("nothing", "factories.py:nothing is a int, neither a FastMCP server nor an MCPServer"),
    ],
)
def test_a_function_that_makes_no_server_is_one_line(factory, words, capsys):
    Path("factories.py").write_text(FACTORIES)
    assert run("print", f"factories.py:{factory}") == 2
    assert f"nimble-manifest: {words}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "source",
    [
        {"path": "server.py", "entrypoint": "mcp"},
        {"type": "filesystem", "path": "server.py"},
        {"path": "server.py:mcp"},
    ],
)
def test_the_source_of_a_fastmcp_json_is_found_from_any_directory(source, capsys, monkeypatch):
    Path("fastmcp.json").write_text(json.dumps({"source": source, "environment": {}}))
    project = Path.cwd()
    monkeypatch.chdir("/")
    assert run("print", str(project / "fastmcp.json")) == 0
    assert json.loads(capsys.readouterr().out)["lifecycle"] == NAMES


@pytest.mark.parametrize(
    ("configuration", "words"),
    [
        (None, "cannot read fastmcp.json: No such file"),
        ("{", "fastmcp.json has no source that names a file"),
        ('{"source": {"type": "git", "path": "x"}}', "fastmcp.json has no source"),
        ('{"source": {"path": "other.py"}}', "other.py has no server named mcp, server, app"),
    ],
)
def test_a_fastmcp_json_that_leads_nowhere_is_one_line(configuration, words, capsys):
    Path("other.py").write_text("thing = 1")
    if configuration is not None:
        Path("fastmcp.json").write_text(configuration)
    assert run("print", "fastmcp.json") == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("thing = 1", "has no server named mcp, server, app"),
        ("[].nothing", "AttributeError: 'list' object has no attribute 'nothing'"),
        ("1 / 0", "ZeroDivisionError"),
    ],
)
def test_the_file_of_a_fastmcp_json_is_executed_once_and_its_own_error_told(text, words, capsys):
    note = "with open('executed', 'a') as file: file.write('x')"
    Path("other.py").write_text(f"{note}\n{text}\n")
    Path("fastmcp.json").write_text('{"source": {"path": "other.py"}}')
    assert run("print", "fastmcp.json") == 2
    assert words in capsys.readouterr().err
    assert Path("executed").read_text() == "x"


def test_the_same_input_gives_the_same_bytes_whatever_is_around(project):
    written = set()
    for zone, seed, directory in [("UTC", "1", project), ("Pacific/Apia", "2", Path("/"))]:
        save(MANIFEST)
        arguments = ["write", f"{project}/server.py:mcp", "--manifest", f"{project}/manifest.json"]
        code = f"from nimble_lifecycle.manifest.cli import main; main({arguments!r})"
        subprocess.run(
            [sys.executable, "-c", code],
            cwd=directory,
            env={**os.environ, "TZ": zone, "PYTHONHASHSEED": seed, "LC_ALL": "C"},
            check=True,
            capture_output=True,
            timeout=120,
        )
        written.add((project / "manifest.json").read_bytes())
    assert len(written) == 1
