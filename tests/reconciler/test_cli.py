"""`nimble-reconcile` as a process: what it prints, how it exits, how it takes signals."""

import gc
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from waiting import PATIENCE, until

from nimble_lifecycle.protocol import Reason, Workspace
from nimble_lifecycle.reconciler.backoff import Backoff
from nimble_lifecycle.reconciler.cli import main
from nimble_lifecycle.reconciler.cli.app import settings_of
from nimble_lifecycle.reconciler.cli.run import collecting_rarely
from nimble_lifecycle.reconciler.limits import LEASES_PER_LIMIT, Limits, policy_of, rules_of
from nimble_lifecycle.reconciler.settled import SettlementBuilder
from nimble_lifecycle.reconciler.vendor import Vendor
from nimble_lifecycle.settings import WorkerSettings
from nimble_lifecycle.store import IntentStore, WorkStore
from nimble_lifecycle.testing import MemoryVendor

PROGRAM = [str(Path(sys.executable).with_name("nimble-reconcile"))]


class Shell:
    """A directory with an adapter and a vendor in it, and a database."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.world = directory / "world"
        self.world.mkdir()
        self.url = f"sqlite:///{directory / 'nimble.db'}"
        self.started: list[subprocess.Popen[str]] = []
        shutil.copy(Path(__file__).with_name("directory_vendor.py"), directory / "adapter.py")

    def start(self, *arguments: str, **environment: str) -> "subprocess.Popen[str]":
        inherited = {k: v for k, v in os.environ.items() if not k.startswith("NIMBLE_")}
        process = subprocess.Popen(
            [*PROGRAM, *arguments],
            cwd=self.directory,
            env={**inherited, "NIMBLE_DATABASE_URL": self.url, "COLUMNS": "80", **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def run(self, *arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
        return ended(self.start(*arguments, **environment))

    def install(self, *names: str, kind: str = "directory") -> None:
        host = IntentStore(self.url)
        for name in names:
            end = time.monotonic() + PATIENCE
            host.ready(Workspace(name), kind, Reason.INSTALL, {}, until=end)
        host.close()

    def rows(self) -> list[dict[str, object]]:
        store = WorkStore(self.url)
        rows = store.status()
        store.close()
        return rows

    def resources(self) -> list[Path]:
        return list(self.world.glob("[!.]*"))


def ended(process: "subprocess.Popen[str]") -> "subprocess.CompletedProcess[str]":
    out, err = process.communicate(timeout=PATIENCE)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    made = Shell(tmp_path)
    yield made
    for process in made.started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def inside(
    shell: Shell, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> pytest.CaptureFixture[str]:
    """Let this process stand where the shell is; what needs no process of its own is quicker so."""
    monkeypatch.chdir(shell.directory)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "adapter", raising=False)
    monkeypatch.setenv("NIMBLE_DATABASE_URL", shell.url)
    return capsys


# -- run -------------------------------------------------------------------------------------------


def test_run_until_idle_does_what_is_wanted_and_says_what_it_watches(shell: Shell) -> None:
    shell.install("a", "b")
    shell.install("c", kind="other\x1b[31m")
    done = shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle", "--grace", "90s")
    assert (done.returncode, done.stdout, len(shell.resources())) == (0, "", 2)
    said = [line for line in done.stderr.splitlines() if line.startswith("nimble-reconcile")]
    assert f"watching SQLite file {shell.directory / 'nimble.db'} for 'directory'" in said[0]
    assert "nothing but trust" in said[0]
    assert "a grace of 90 s" in said[1]
    assert "other\\x1b[31m" in said[2]
    assert "no rows of this kind" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "setting",
    [
        {"NIMBLE_BACKOFF_LONGEST": "9" * 400},
        {"NIMBLE_GRACE": "36501d"},
        {"NIMBLE_MAX_LIVE": str(2**31)},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_what_no_database_can_count_with_is_wrong_use(shell: Shell, setting) -> None:
    done = shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle", **setting)
    assert done.returncode == 2
    assert next(iter(setting)) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_cap_on_live_tenancies_holds_the_rest_and_says_so(shell: Shell) -> None:
    shell.install("a", "b", "c")
    capped = ("run", "adapter:DirectoryVendor", "--exit-when-idle")
    done = shell.run(*capped, "--max-live", "1")
    assert (done.returncode, len(shell.resources())) == (0, 1)
    assert "directory: 2 workspaces wait for a cap, --max-live" in done.stderr
    assert shell.run(*capped, NIMBLE_MAX_CREATES_PER_HOUR="2").returncode == 0
    assert len(shell.resources()) == 2
    assert shell.run(*capped).returncode == 0
    assert len(shell.resources()) == 3


def test_an_empty_database_is_named(shell: Shell) -> None:
    done = shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle")
    assert done.returncode == 0
    assert "no rows of this kind yet" in done.stderr


def test_wrong_use_is_one_line_and_two(shell: Shell) -> None:
    done = shell.run("run", "adapter:Lacking")
    talk, said = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (2, "")
    assert talk.startswith("talk")
    assert said == "nimble-reconcile: adapter:Lacking lacks the method release"


def test_an_adapter_that_cannot_open_is_one_line_and_one(shell: Shell) -> None:
    done = shell.run("run", "adapter:CannotOpen")
    assert (done.returncode, done.stdout) == (1, "")
    assert "could not open: ConnectionRefusedError" in done.stderr.splitlines()[-1]
    assert "hunter2" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run"], 2, "target"),
        (["run", "nowhere:Vendor"], 2, "cannot import nowhere"),
        (["run", "adapter"], 2, "write module:attr or file.py:attr"),
        (["run", "adapter:DirectoryVendor", "--grace", "soon"], 2, "--grace (NIMBLE_GRACE)"),
        (["run", "adapter:DirectoryVendor", "--concurrency", "0"], 2, "NIMBLE_CONCURRENCY"),
        (["run", "adapter:DirectoryVendor", "--concurrency", "many"], 2, "concurrency"),
        (["status", "--database-url", "mysql://u:hunter2@h/x"], 2, "sqlite:///"),
        (["dance"], 2, "dance"),
        (["status", "--database-url", "postgresql://u:hunter2@127.0.0.1:1/x"], 1, "127.0.0.1:1/x"),
        (["migrate", "--database-url", "sqlite:////dev/null/x.db"], 1, "/dev/null"),
    ],
)
def test_whatever_is_wrong_is_one_line_without_a_secret(
    inside: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    with pytest.raises(SystemExit) as ends:
        main(arguments)
    said = inside.readouterr()
    assert (ends.value.code, said.out, said.err.count("\n")) == (code, "", 1)
    assert words in said.err
    assert "hunter2" not in said.err


@pytest.mark.postgres
def test_a_database_without_tables_names_the_command_that_makes_them(
    shell: Shell, empty_postgres_url: str
) -> None:
    shell.url = empty_postgres_url
    refused = shell.run("run", "adapter:DirectoryVendor")
    assert refused.returncode == 1
    assert "`nimble-reconcile migrate`" in refused.stderr
    assert shell.run("migrate").returncode == 0
    assert shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle").returncode == 0


def test_a_worker_with_all_slots_lost_exits_three(shell: Shell) -> None:
    shell.install("a", "b")
    done = shell.run("run", "adapter:Hanging", "--concurrency", "2")
    assert done.returncode == 3
    assert "every slot is held" in done.stderr


LOOKING = [
    ("status",),
    ("status", "--json"),
    ("journal",),
    *((verb, "a") for verb in ("retry", "release", "undo", "abandon", "pause", "resume")),
    ("adopt", "a", "x1"),
    ("approve", "--kind", "directory"),
    ("sweep", "adapter:DirectoryVendor"),
    ("sweep", "adapter:DirectoryVendor", "--dry-run"),
    ("claim-database", "--moved"),
    ("claim-database", "--copy", "--deployment", "x"),
    ("rekey", "acme-inc", "--all"),
]


@pytest.mark.parametrize("arguments", LOOKING, ids=" ".join)
def test_what_only_looks_or_operates_makes_no_file(
    shell: Shell, inside: pytest.CaptureFixture[str], arguments: tuple[str, ...]
) -> None:
    for place in ("typo.db", "typo/nimble.db"):
        with pytest.raises(SystemExit) as ends:
            main([*arguments, "--database-url", f"sqlite:///{place}"])
        said = inside.readouterr()
        assert (ends.value.code, said.out) == (1, "")
        assert f"SQLite file {shell.directory / place} does not exist" in said.err
        assert "`nimble-reconcile migrate`" in said.err
    assert not list(shell.directory.glob("typo*"))


def test_what_only_looks_puts_no_tables_into_anothers_file(
    shell: Shell, inside: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(shell.directory / "nimble.db") as connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    before = dump(shell)
    assert "no tables of ours" in refused(inside, 1, "status")
    assert dump(shell) == before


def test_migrate_makes_the_file(shell: Shell, inside: pytest.CaptureFixture[str]) -> None:
    printed(inside, "migrate")
    assert printed(inside, "status", "--json").strip() == "[]"


# -- signals ---------------------------------------------------------------------------------------


def leased(shell: Shell) -> bool:
    with sqlite3.connect(shell.directory / "nimble.db") as connection:
        count = connection.execute(
            "SELECT count(*) FROM nimble_tenancy WHERE lease_owner IS NOT NULL"
        ).fetchone()[0]
    connection.close()
    return bool(count)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_lets_the_call_in_flight_end(shell: Shell, number: signal.Signals) -> None:
    shell.install("a")
    process = shell.start("run", "adapter:Patient")
    until(lambda: leased(shell))
    process.send_signal(number)
    done = ended(process)
    assert (done.returncode, "Traceback" in done.stderr) == (0, False)
    assert [row["phase"] for row in shell.rows()] == ["ready"]
    assert len(shell.resources()) == 1


def test_a_signal_waits_no_longer_than_the_drain(shell: Shell) -> None:
    shell.install("a")
    process = shell.start("run", "adapter:Endless", "--drain", "50ms")
    until(lambda: leased(shell))
    process.terminate()
    done = ended(process)
    assert done.returncode == 0
    assert "1 calls are left behind" in done.stderr
    (row,) = shell.rows()
    assert row["phase"] == "provisioning"
    assert row["lease_expires_at"], "the call may still be on its way"
    assert row["lease_owner"] is None, "and it is no suspect: it did not end the worker"


def test_further_signals_neither_end_a_call_in_flight_nor_write_into_other_files(
    shell: Shell,
) -> None:
    shell.install("a")
    process = shell.start("run", "adapter:Signalled")
    until((shell.world / "begun").exists)
    process.terminate()
    process.send_signal(signal.SIGINT)
    until((shell.world / "precious").exists)
    process.terminate()
    (shell.world / "go on").touch()
    assert ended(process).returncode == 0
    assert (shell.world / "precious").read_text() == "mine"
    assert [row["phase"] for row in shell.rows()] == ["ready"]


def test_somebody_who_does_not_want_to_wait_presses_ctrl_c_again(shell: Shell) -> None:
    shell.install("a")
    process = shell.start("run", "adapter:Endless", "--drain", "1h")
    until(lambda: leased(shell))
    process.terminate()
    until(lambda: process.poll() is not None or process.send_signal(signal.SIGINT))
    assert ended(process).returncode == 130


def test_a_signal_ends_a_worker_whose_event_loop_stands_still(shell: Shell) -> None:
    shell.install("a")
    process = shell.start("run", "adapter:Blocking", "--drain", "0.1")
    until((shell.world / "blocked").exists)
    process.terminate()
    assert ended(process).returncode == 0


# -- status ----------------------------------------------------------------------------------------


def test_status_shows_forged_values_as_what_they_are(shell: Shell) -> None:
    shell.install("[red]x[/red]\\", "[link=https://evil.test]y")
    ran = shell.start("run", "adapter:Failing")
    until(lambda: "RuntimeError" in str(shell.rows()))
    ran.terminate()
    ended(ran)
    shown = shell.run("status")
    assert shown.returncode == 0
    assert "[red]x[/red]\\ #1" in shown.stdout
    assert "[link=https://evil.test]y" in shown.stdout
    assert "[bold]alarm[/bold]" in shown.stdout
    assert "\x1b" not in shown.stdout
    assert "hunter2" not in shown.stdout + str(shell.rows())


def test_status_as_json_has_the_columns_as_keys(
    shell: Shell, inside: pytest.CaptureFixture[str]
) -> None:
    shell.install("a")
    (row,) = json.loads(printed(inside, "status", "--json"))
    assert row["workspace_id"] == "a"
    assert row["phase"] == "pending"
    assert {
        *("id", "tenant_id", "kind", "incarnation", "desired", "params", "generation", "phase"),
        *("reason", "message", "external_id", "details", "due_at", "attempts", "last_error"),
        *("release_after", "lease_expires_at", "hold", "paused"),
    } <= set(row)
    assert json.loads(printed(inside, "status", "--json", "--summary")) == {"pending": 1}
    assert printed(inside, "status", "--summary").split() == ["pending", "1"]
    assert printed(inside, "status", "--kind", "other", "--json").strip() == "[]"


def test_status_says_when_a_person_is_needed(
    shell: Shell, inside: pytest.CaptureFixture[str]
) -> None:
    shell.install("a")
    printed(inside, "status", "--exit-code")
    with sqlite3.connect(shell.directory / "nimble.db") as connection:
        connection.execute("UPDATE nimble_tenancy SET phase = 'stalled'")
    connection.close()
    printed(inside, "status", "--exit-code", code=5)
    printed(inside, "status")


# -- the database ----------------------------------------------------------------------------------


def test_grants_prints_sql_without_a_connection(inside: pytest.CaptureFixture[str]) -> None:
    roles = ("--server-role", "its server", "--worker-role", "its_worker", "--schema", "theirs")
    nowhere = ("--database-url", "postgresql://u:hunter2@127.0.0.1:1/x")
    given = printed(inside, "grants", *roles, *nowhere)
    assert given.splitlines()[0].startswith("-- ")
    assert 'ON "theirs".nimble_tenancy TO "its server";' in given
    assert "hunter2" not in given


def test_grants_has_no_answer_for_sqlite(inside: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ends:
        main(["grants", "--server-role", "a", "--worker-role", "b"])
    said = inside.readouterr()
    assert (ends.value.code, said.out, said.err.count("\n")) == (2, "", 1)
    assert "nothing but trust" in said.err


def refused(inside: pytest.CaptureFixture[str], code: int, *arguments: str) -> str:
    with pytest.raises(SystemExit) as ends:
        main(arguments)
    said = inside.readouterr()
    assert (ends.value.code, said.out, said.err.count("\n")) == (code, "", 1), said.err
    return said.err


def test_a_copy_is_not_run_on_until_somebody_says_what_it_is(
    shell: Shell, inside: pytest.CaptureFixture[str]
) -> None:
    shell.install("a")
    assert shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle").returncode == 0
    (made,) = shell.resources()
    copy = shell.directory / "copy.db"
    shutil.copyfile(shell.directory / "nimble.db", copy)
    at_copy = ("--database-url", f"sqlite:///{copy}")

    done = shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle", *at_copy)
    assert (done.returncode, done.stdout) == (4, "")
    assert "claim-database --moved" in done.stderr
    assert "watching" not in done.stderr
    shown = shell.run("status", "--json", *at_copy)
    assert "claim-database --moved" in shown.stderr
    assert [row["phase"] for row in json.loads(shown.stdout)] == ["ready"]
    assert shell.run("status", "--exit-code", *at_copy).returncode == 5
    assert refused(inside, 4, "rekey", "t", "--all", *at_copy)
    assert refused(inside, 2, "claim-database", *at_copy)
    assert refused(inside, 2, "claim-database", "--moved", "--copy", *at_copy)

    claimed = shell.run("claim-database", "--copy", *at_copy)
    assert claimed.returncode == 0
    assert "1 tenancies are the original's" in claimed.stderr
    assert shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle", *at_copy).returncode == 0
    assert made in shell.resources()
    assert len(shell.resources()) == 2
    assert shell.run("run", "adapter:DirectoryVendor", "--exit-when-idle").returncode == 0
    assert len(shell.resources()) == 2


def test_a_named_deployment_is_named_by_argument_or_environment(
    shell: Shell, inside: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = ("run", "adapter:DirectoryVendor", "--exit-when-idle")
    assert shell.run(*idle, "--deployment", "production").returncode == 0
    assert shell.run(*idle).returncode == 4
    assert shell.run(*idle, NIMBLE_DEPLOYMENT="production").returncode == 0
    staging = shell.run(*idle, NIMBLE_DEPLOYMENT="staging")
    assert staging.returncode == 4
    assert "'production', but this deployment is 'staging'" in staging.stderr
    same = ("claim-database", "--copy", "--deployment", "production")
    assert "needs a name" in refused(inside, 1, *same)
    printed(inside, "claim-database", "--copy", "--deployment", "staging")
    assert shell.run(*idle, "--deployment", "staging").returncode == 0
    assert "--deployment" in refused(inside, 2, *idle, "--deployment", "")


def test_a_moved_database_goes_on(shell: Shell, inside: pytest.CaptureFixture[str]) -> None:
    shell.install("a")
    idle = ("run", "adapter:DirectoryVendor", "--exit-when-idle")
    assert shell.run(*idle).returncode == 0
    elsewhere = shell.directory / "elsewhere.db"
    shutil.move(shell.directory / "nimble.db", elsewhere)
    shell.url = f"sqlite:///{elsewhere}"
    assert shell.run(*idle).returncode == 4
    assert "tenancies go on" in shell.run("claim-database", "--moved").stderr
    assert shell.run(*idle).returncode == 0
    assert [row["phase"] for row in shell.rows()] == ["ready"]
    assert len(shell.resources()) == 1


def test_rekey_says_what_it_moved(shell: Shell, inside: pytest.CaptureFixture[str]) -> None:
    shell.install("a", "b\u202e", "c")
    moved = shell.run("rekey", "acme-inc", "--workspace", "a", "--workspace", "b\u202e")
    assert (moved.returncode, moved.stdout) == (0, "")
    assert "acme-inc/a (directory): 1 rows moved" in moved.stderr
    assert "acme-inc/b\\u202e" in moved.stderr
    assert {row["workspace_id"]: row["tenant_id"] for row in shell.rows()} == {
        "a": "acme-inc",
        "b\u202e": "acme-inc",
        "c": "",
    }
    assert "'a'" in refused(inside, 1, "rekey", "acme-inc", "--workspace", "a")
    assert "--all" in refused(inside, 2, "rekey", "acme-inc")
    assert "TENANT" in refused(inside, 2, "rekey", " ", "--all")
    printed(inside, "rekey", "acme-inc", "--all", "--kind", "directory")
    assert {row["tenant_id"] for row in shell.rows()} == {"acme-inc"}


def printed(inside: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ends:
        main(arguments)
    assert ends.value.code == code
    return inside.readouterr().out


# -- sweep -----------------------------------------------------------------------------------------


@pytest.fixture
def swept(shell: Shell, inside: pytest.CaptureFixture[str]) -> pytest.CaptureFixture[str]:
    """Three ready tenancies of long ago, one of them not there any more, a foreign resource."""
    shell.install("a", "b", "c")
    provision(shell)
    (shell.world / "res-a").unlink()
    (shell.world / "[bold]x").write_text("zzzzzzzzzz-" + "a" * 26)
    with sqlite3.connect(shell.directory / "nimble.db") as connection:
        long_ago = "2020-01-01 00:00:00.000000"
        connection.execute(
            "UPDATE nimble_tenancy SET last_seen_at = ?, created_at = ?, last_observed_at = ?",
            (long_ago, long_ago, long_ago),
        )
    connection.close()
    return inside


class Named(MemoryVendor):
    kind = "directory"


def provision(shell: Shell) -> None:
    """Do a worker's work, quicker than one starts."""
    store = WorkStore(shell.url)
    rules = rules_of(Named(), Limits(), "me")
    for claim in store.claim(rules, 10):
        name = f"res-{claim.tenancy.workspace_id}"
        (shell.world / name).write_text(str(claim.tenancy.idempotency_key))
        row = SettlementBuilder(claim, policy_of(Named(), Limits()))
        store.settle([row.ready(name, {})], actor="me")
    store.close()


def test_a_dry_run_of_a_sweep_prints_what_would_be_done_and_writes_nothing(
    shell: Shell, swept: pytest.CaptureFixture[str]
) -> None:
    before = dump(shell)
    options = ("--installations", "adapter:installations", "--release-stale-after", "8d")
    for _ in range(2):
        said = printed(swept, "sweep", "adapter:DirectoryVendor", "--dry-run", *options)
    assert dump(shell) == before
    assert "would be done" in said
    assert said.count("stale ") == 3
    assert said.count("unlisted ") == 2
    assert said.count("drift ") == 1
    assert "1 of them of other deployments" in said


def test_a_sweep_confirmed_by_a_second_one_mends_what_vanished(
    shell: Shell, swept: pytest.CaptureFixture[str]
) -> None:
    shown = json.loads(printed(swept, "sweep", "adapter:DirectoryVendor", "--json"))
    assert [f["outcome"] for f in shown["findings"] if f["sort"] == "drift"] == ["waiting"]
    assert (shown["complete"], shown["alerts"], shown["inventory"]["foreign"]) == (True, [], 1)
    shown = json.loads(printed(swept, "sweep", "adapter:DirectoryVendor", "--json"))
    assert [f["outcome"] for f in shown["findings"] if f["sort"] == "drift"] == ["done"]
    lives = [(row["workspace_id"], row["phase"]) for row in shell.rows() if not row["retired_at"]]
    assert sorted(lives) == [("a", "pending"), ("b", "ready"), ("c", "ready")]


def test_what_an_adapter_prints_does_not_meet_the_data_of_a_sweep(
    shell: Shell, swept: pytest.CaptureFixture[str]
) -> None:
    done = shell.run("sweep", "adapter:Chatty", "--json")
    assert json.loads(done.stdout)["complete"]
    assert "a print" in done.stderr
    assert "a child" in done.stderr


def test_a_sweep_says_when_a_person_is_needed(
    swept: pytest.CaptureFixture[str],
) -> None:
    printed(swept, "sweep", "adapter:DirectoryVendor", "--exit-code", code=5)
    printed(swept, "sweep", "adapter:DirectoryVendor")


def test_a_list_that_is_not_complete_ends_with_one_and_says_why(
    swept: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ends:
        main(["sweep", "adapter:Unlisted", "--exit-code"])
    said = swept.readouterr()
    assert ends.value.code == 1
    assert "the inventory does not count" in said.err
    assert "RuntimeError" in said.err
    assert "hunter2" not in said.err + said.out
    assert "\x1b" not in said.err + said.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--release-stale-after", "6d"], "--release-stale-after (NIMBLE_RELEASE_STALE_AFTER)"),
        (["--installations", "adapter:nothing"], "no attribute 'nothing'"),
        (["--installations", "adapter:WORLD"], "is no iterator"),
    ],
)
@pytest.mark.parametrize("command", ["sweep", "run"])
def test_what_sweeps_cannot_do_is_refused_at_start(
    inside: pytest.CaptureFixture[str], command: str, arguments: list[str], words: str
) -> None:
    with pytest.raises(SystemExit) as ends:
        main([command, "adapter:DirectoryVendor", *arguments])
    assert ends.value.code == 2
    assert words in inside.readouterr().err


def test_another_sweep_under_way_is_one_line_and_one(
    shell: Shell, swept: pytest.CaptureFixture[str]
) -> None:
    with sqlite3.connect(shell.directory / "nimble.db") as connection:
        connection.execute(
            "INSERT INTO nimble_vendor (kind, sweep_owner, sweep_expires_at)"
            " VALUES ('directory', 'another', '2999-01-01 00:00:00.000000')"
        )
    connection.close()
    assert printed(swept, "sweep", "adapter:DirectoryVendor", code=1) == ""


def test_run_sweeps_by_schedule(shell: Shell, swept: pytest.CaptureFixture[str]) -> None:
    process = shell.start("run", "adapter:DirectoryVendor", "--sweep-every", "0.2")
    watchdog = threading.Timer(20, process.kill)
    watchdog.start()
    assert process.stderr is not None
    told = next((line for line in process.stderr if "a sweep found" in line), "")
    watchdog.cancel()
    assert "3 stale reported, 1 drift waiting" in told
    process.terminate()
    assert ended(process).returncode == 0


def dump(shell: Shell) -> list[str]:
    with sqlite3.connect(shell.directory / "nimble.db") as connection:
        lines = list(connection.iterdump())
    connection.close()
    return lines


# -- settings --------------------------------------------------------------------------------------


def test_the_defaults_are_what_the_documentation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NIMBLE_")]:
        monkeypatch.delenv(name)
    settings = WorkerSettings()
    assert settings.concurrency == 20
    assert (settings.poll, settings.drain, settings.grace) == (1.0, 10.0, 24 * 3600.0)
    assert (settings.backoff_first, settings.backoff_longest) == (1.0, 600.0)
    assert settings.max_creates == 5
    assert (settings.max_live, settings.max_creates_per_hour) == (None, None)
    assert (settings.sweep_every, settings.stale_after) == (3600.0, 30 * 86400.0)
    assert settings.release_stale_after is None
    assert not settings.release_orphans
    assert not settings.release_unlisted
    assert Limits() == Limits(
        concurrency=20,
        poll=1.0,
        grace=24 * 3600.0,
        drain=10.0,
        max_creates=5,
        max_live=None,
        max_creates_per_hour=None,
        release_share=0.25,
        release_least=10,
        backoff=Backoff(1.0, 600.0),
    )
    assert (Vendor.max_concurrency, Vendor.max_rate) == (None, None)
    assert Vendor.time_limit.total_seconds() == 10.0
    assert Vendor.time_limit.total_seconds() * LEASES_PER_LIMIT == 30.0
    assert Vendor.lag.total_seconds() == 10.0
    assert Vendor.repeatable is None


def test_arguments_beat_the_environment_and_that_the_defaults(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("NIMBLE_CONCURRENCY", "7")
    monkeypatch.setenv("NIMBLE_GRACE", "nonsense")
    monkeypatch.setenv("NIMBLE_DRAIN", "90s")
    monkeypatch.setenv("NIMBLE_DATABASE_URL", "sqlite:////environment.db")
    settings = settings_of(database_url=None, grace="24h", poll=None, concurrency=None)
    assert (settings.concurrency, settings.grace, settings.drain) == (7, 86400.0, 90.0)
    assert settings.database_url.get_secret_value() == "sqlite:////environment.db"
    given = settings_of(database_url="sqlite:////argument.db", grace="1", concurrency=3)
    assert (given.concurrency, given.database_url.get_secret_value()) == (
        3,
        "sqlite:////argument.db",
    )


def test_circular_garbage_is_looked_for_less_often_only_while_a_worker_runs() -> None:
    before = gc.get_threshold()
    with collecting_rarely():
        assert gc.get_threshold()[0] > before[0]
    assert gc.get_threshold() == before
