"""`check-server` says of each host what it would do, and finds what is wrong with a server."""

import json
import shlex
import subprocess
import sys
import textwrap
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from fastmcp import FastMCP
from fastmcp.server.middleware.caching import ResponseCachingMiddleware
from fastmcp.tools import Tool, ToolResult
from mcp.server import MCPServer

from nimble_lifecycle import Lifecycle, sdk
from nimble_lifecycle.testing.cli import main
from nimble_lifecycle.testing.host import serving
from nimble_lifecycle.testing.report import Verdict
from nimble_lifecycle.testing.servers import check_server

OLD = Path(__file__).parents[1] / "hosts" / "old_server.py"
BLOCK = {"host_version": "1.0", "lifecycle": {"on_ready": "up", "on_removing": "down"}}


def verdicts(report, check):
    """Give the verdict of a check for each host; None where it was not made."""
    return [
        next((each.verdict for each in seen.checks if each.check == check), None)
        for seen in report.seen
    ]


def only(report, check, *, failed=6):
    """Give the one sentence a check failed with, for so many hosts; no other check failed."""
    assert report.failed == [check], str(report)
    ((found, labels),) = [
        (check, labels) for check, labels in report.words().items() if check.verdict == "failed"
    ]
    assert len(labels) == failed
    return found.words


@pytest.fixture
def server(sqlite_url, monkeypatch):
    monkeypatch.setenv("NB_WORKSPACE_ID", "ws_1")
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=sqlite_url, deadline=30.0)
    lifecycle.on_ready(name="up")(lambda: "Welcome")
    lifecycle.on_removing(name="down")(lambda: "Bye")
    return mcp


@pytest.fixture
def sdk_server(sqlite_url, monkeypatch):
    monkeypatch.setenv("NB_WORKSPACE_ID", "ws_1")
    lifecycle = sdk.Lifecycle(database_url=sqlite_url, deadline=30.0)
    lifecycle.on_ready(name="up")(lambda: "Welcome")
    lifecycle.on_removing(name="down")(lambda: "Bye")
    return MCPServer("acme", extensions=[lifecycle], lifespan=lifecycle.lifespan())


@pytest.mark.anyio
@pytest.mark.parametrize("framework", ["server", "sdk_server"])
async def test_a_server_of_ours_is_called_correctly_by_every_host(framework, request):
    server = request.getfixturevalue(framework)
    report = await check_server(server)
    assert report.ok, str(report)
    assert [seen.label for seen in report.seen] == [
        f"{generation} {era}" for era in (2025, 2026) for generation in "ABC"
    ]
    assert {(seen.ready, seen.removing, seen.notice) for seen in report.seen} == {
        ("up", "down", "Welcome")
    }
    assert {check.verdict for seen in report.seen for check in seen.checks} == {"ok"}


@pytest.mark.anyio
async def test_over_http_the_block_must_be_given_and_the_edge_names_the_workspace(sqlite_url):
    mcp = FastMCP("acme")
    lifecycle = Lifecycle(mcp, database_url=sqlite_url, trust_edge_headers=True, deadline=30.0)
    lifecycle.on_ready(name="up")(lambda tenancy: f"{tenancy.tenant_id} {tenancy.workspace_id}")
    lifecycle.on_removing(name="down")(lambda: "Bye")
    async with serving(mcp, stateless=True) as url:
        report = await check_server(url, workspace="ws_7", tenant="t")
        assert report.ok, str(report)
        assert verdicts(report, "handlers")[0] is Verdict.NOT_CHECKED
        assert [seen.ready for seen in report.seen][:2] == [None, "up"]
        assert report.seen[1].notice == "t ws_7"
        report = await check_server(url)
    assert "install" in report.failed
    assert "access token" in str(report)


class Handler(Tool):
    """Answers by a function of its arguments."""

    async def run(self, arguments):
        return ToolResult(content=FAULTS[self.title](arguments))


FAULTS = {}


def fault(function):
    FAULTS[function.__name__] = function
    return function


@fault
def good(arguments):
    return "fine"


@fault
def refuses_extra(arguments):
    if arguments.keys() - {"reason"}:
        raise ValueError("unexpected")
    return "fine"


@fault
def refuses_null(arguments):
    if "reason" in arguments and not isinstance(arguments["reason"], str):
        raise ValueError("not a string")
    return "fine"


@fault
def long_winded(arguments):
    return "x" * 800


@fault
def silent(arguments):
    return ""


def by_hand(ready="good", removing="good", **names):
    """Make a server whose handlers only a block can name."""
    mcp = FastMCP("by hand")
    schema = {"type": "object", "properties": {}}
    for name, how in (("up", ready), ("down", removing)):
        mcp.add_tool(Handler(name=names.get(name, name), title=how, parameters=schema))
    return mcp


@pytest.mark.anyio
async def test_a_server_that_only_the_block_knows_is_not_called_by_the_newest_hosts():
    report = await check_server(by_hand(), block=BLOCK)
    assert "advertise ai.nimblebrain/lifecycle" in only(report, "handlers", failed=2)
    assert [seen.ready for seen in report.seen] == ["up", "up", None] * 2


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("faults", "check", "words"),
    [
        ({"ready": "refuses_extra"}, "extra-arguments", "up, with arguments"),
        ({"removing": "refuses_extra"}, "extra-arguments", "down, with arguments"),
        ({"ready": "refuses_null"}, "reasons", "{'reason': None}"),
    ],
)
async def test_what_a_handler_written_by_hand_does_not_take_is_found(faults, check, words):
    report = await check_server(by_hand(**faults), block=BLOCK)
    assert [name for name in report.failed if name != "handlers"] == [check]
    assert words in next(each.words for each in report.words() if each.check == check)
    assert verdicts(report, check)[0] is Verdict.FAILED


@pytest.mark.anyio
@pytest.mark.parametrize("mounted", [False, True])
async def test_a_cache_that_answers_in_the_place_of_a_handler_is_found(mounted):
    cached = by_hand()
    cached.add_middleware(ResponseCachingMiddleware())
    server = FastMCP("outer") if mounted else cached
    if mounted:
        server.mount(cached)
    report = await check_server(server, block=BLOCK)
    assert [name for name in report.failed if name != "handlers"] == ["heard"]
    words = next(each.words for each in report.words() if each.check == "heard")
    assert words.startswith("up, said the same again, is answered from a cache")
    assert [type(each) for each in cached.middleware].count(ResponseCachingMiddleware) == 1
    assert "_Heard" not in {type(each).__name__ for each in cached.middleware}
    cached.middleware.clear()
    assert (await check_server(server, block=BLOCK)).failed == ["handlers"]


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("ready", "words"), [("long_winded", "500 characters"), ("silent", "none")]
)
async def test_a_notice_that_people_do_not_see_as_it_is_is_a_warning(ready, words):
    report = await check_server(by_hand(ready), block=BLOCK)
    assert verdicts(report, "notice")[0] is Verdict.WARNING
    assert words in next(each.words for each in report.words() if each.check == "notice")


@pytest.mark.anyio
async def test_a_block_that_names_other_tools_than_the_wire_is_found(server):
    server.mount(by_hand(up="old_up"))
    block = {"host_version": "1.0", "lifecycle": {"on_ready": "old_up", "on_removing": "down"}}
    report = await check_server(server, block=block)
    assert (
        only(report, "agreement", failed=2) == "for ready the block names old_up, and the wire up"
    )


@pytest.mark.anyio
async def test_a_marker_that_a_host_refuses_and_an_era_that_is_not_spoken():
    report = await check_server([sys.executable, str(OLD), "ready"])
    assert "none of them is called" in only(report, "handlers", failed=2)
    assert verdicts(report, "connection") == [Verdict.OK] * 3 + [Verdict.WARNING] * 3


@pytest.mark.anyio
async def test_what_is_printed_between_the_messages_of_stdio_is_found():
    command = f"print('noise', flush=True); exec(open({str(OLD)!r}).read())"
    report = await check_server([sys.executable, "-c", command])
    assert only(report, "frames", failed=3).startswith("'noise' is no message of the protocol")


# -- the command -----------------------------------------------------------------------------------


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as ended:
        main(["check-server", *map(str, arguments)])
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


NOISY = """
from fastmcp import FastMCP
from nimble_lifecycle import Lifecycle
print("noise at import")
def make():
    mcp = FastMCP("noisy")
    lifecycle = Lifecycle(mcp)
    @lifecycle.on_ready
    def up() -> str:
        print("noise in a handler")
        return "Welcome"
    @lifecycle.on_removing
    def down() -> str:
        return "Bye"
    return mcp
"""


@pytest.fixture
def noisy(tmp_path, empty_sqlite_url, monkeypatch):
    monkeypatch.setenv("NIMBLE_DATABASE_URL", empty_sqlite_url)
    monkeypatch.delenv("NB_WORKSPACE_ID", raising=False)
    path = tmp_path / "noisy_server.py"
    path.write_text(textwrap.dedent(NOISY))
    return path


def test_a_file_or_factory_is_a_target_and_its_noise_stays_off_stdout(noisy, capsys):
    code, out, err = run(capsys, f"{noisy}:make", "--json")
    report = json.loads(out)
    assert (code, report["ok"], report["target"]) == (0, True, "noisy")
    assert [seen["notice"] for seen in report["seen"]] == ["Welcome"] * 6
    assert "noise at import" in err
    assert "noise in a handler" in err


def test_what_children_of_a_server_print_stays_off_stdout_too(noisy):
    words = noisy.read_text().replace('print("noise in', 'import os; os.system("echo child"); ("')
    noisy.write_text(words)
    code = "from nimble_lifecycle.testing.cli import main; main()"
    command = [sys.executable, "-c", code, "check-server", f"{noisy}:make", "--json"]
    ended = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(ended.stdout)["ok"] is True
    assert "child" in ended.stderr.split()


def test_a_command_is_a_target_and_findings_are_exit_code_one(capsys, tmp_path):
    manifest = tmp_path / "manifest.json"
    manifest.write_text(
        json.dumps({"manifest_version": "0.4", "_meta": {"ai.nimblebrain/host": BLOCK}})
    )
    code, out, _ = run(capsys, "--manifest", manifest, "--", sys.executable, OLD)
    assert code == 0, out
    assert shlex.join([sys.executable, str(OLD)]) in out
    code, out, _ = run(capsys, "--", sys.executable, OLD, "ready")
    assert code == 1
    assert "handlers, failed (B 2025, C 2025): ready is marked on 'up', 'down'" in out


LISTS_NOTHING = f"""
import time
code = open({str(OLD)!r}).read().replace('"tools/list":', '"tools/list" and not time.sleep(60):')
exec(code)
"""


class NotFound(BaseHTTPRequestHandler):
    """Answers whatever it is asked with a page that is not there."""

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_error(404)

    def log_message(self, *_):
        pass


def test_an_address_without_a_server_is_told_by_its_status(capsys):
    with ThreadingHTTPServer(("127.0.0.1", 0), NotFound) as http:
        threading.Thread(target=http.serve_forever, daemon=True).start()
        code, out, err = run(capsys, f"http://127.0.0.1:{http.server_port}/mcp")
        http.shutdown()
    assert (code, out) == (1, "")
    assert "answers HTTP 404 and speaks neither" in err


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "name a target"),
        (["nonsense"], 2, "neither module:attr nor a program"),
        (["nothing.py:mcp"], 2, "cannot import nothing.py"),
        (["json:dumps"], 2, "makes no server"),
        ([OLD, "--header", "x"], 2, "--header must be"),
        (["http://127.0.0.1:9/mcp"], 1, "cannot be reached"),
        (["--", sys.executable, "-c", ""], 1, "cannot be reached"),
        (["--timeout", "1s", "--", "sleep", "60"], 1, "it did not answer within 1 s"),
        (["--timeout", "1s", "--", sys.executable, "-c", LISTS_NOTHING], 1, "tools within 1 s"),
    ],
)
def test_what_cannot_be_checked_is_one_line(arguments, code, words, capsys):
    ended, out, err = run(capsys, *arguments)
    assert (ended, out) == (code, "")
    assert words in err
    assert "Traceback" not in err
