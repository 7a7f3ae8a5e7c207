"""PostgreSQL clusters of the tests' own, for tests that stop and start one."""

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from urllib.parse import urlsplit

import psycopg

END_WITH_STDIN = 'read -r _; "$0" -D "$1/data" -m immediate stop; rm -rf "$1"'


def programs() -> Path | None:
    """Find the directory of initdb and pg_ctl, which Debian keeps off the PATH."""
    debian = Path("/usr/lib/postgresql").glob("*/bin")
    newest_first = sorted(debian, key=lambda path: path.parent.name.zfill(4), reverse=True)
    for directory in [*newest_first, *map(Path, os.get_exec_path())]:
        if all(os.access(directory / program, os.X_OK) for program in ("initdb", "pg_ctl")):
            return directory
    return None


def free_port() -> int:
    """Give a TCP port nobody listens on."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return int(probe.getsockname()[1])


PLAIN = ("--locale=C", "--no-sync")


class ClusterError(Exception):
    """A cluster did not start; the text has what it said."""


class Cluster:
    """A cluster on a free port, for the `with` block; its programs refuse root: `postgres` then.

    Only a `durable` one outlives a crash of the machine, at the speed of its disk.
    """

    def __init__(self, directory: Path, *, durable: bool = False) -> None:
        self._directory = directory
        self._durability = () if durable else ("-c fsync=off", "-c full_page_writes=off")
        self._user = "postgres" if os.geteuid() == 0 else None
        self._port = free_port()
        self.url = f"postgresql://postgres@127.0.0.1:{self._port}/postgres"

    def __enter__(self) -> "Cluster":
        self._home = Path(tempfile.mkdtemp(prefix="nimble-postgres-"))
        try:
            if self._user:
                shutil.chown(self._home, self._user)
            self._run("initdb", "-U", "postgres", "-A", "trust", "-E", "UTF8", *PLAIN)
            self.start()
        except (OSError, LookupError, subprocess.SubprocessError) as error:
            said = self._said()
            shutil.rmtree(self._home, ignore_errors=True)
            text = f"a private PostgreSQL cluster did not start: {error}\n{said}"
            raise ClusterError(text) from error
        # Ends the cluster when this process closes the pipe, which even a killed one does.
        self._keeper = subprocess.Popen(
            ["sh", "-c", END_WITH_STDIN, str(self._directory / "pg_ctl"), str(self._home)],
            user=self._user,
            cwd="/",
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._keeper.__exit__(kind, error, trace)  # closes the pipe and waits

    def start(self) -> None:
        """Start it; it answers when this returns."""
        options = " ".join([f"-h 127.0.0.1 -p {self._port} -k ''", *self._durability])
        self._run("pg_ctl", "-w", "-o", options, "start")

    def stop(self) -> None:
        """Stop it at once, without a word to anybody: it recovers when it starts."""
        self._run("pg_ctl", "-w", "-m", "immediate", "stop")

    def copy(self, name: str) -> str:
        """Make a database that is a copy of its first one, and give its URL."""
        template = urlsplit(self.url)._replace(path="/template1").geturl()
        with psycopg.connect(template, autocommit=True) as admin:
            admin.execute(f"CREATE DATABASE {name} TEMPLATE postgres")
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def _run(self, program: str, *arguments: str) -> None:
        # Output goes to a file: the server inherits it, and a pipe would never be at its end.
        with (self._home / "output").open("ab") as output:
            subprocess.run(
                [self._directory / program, "-D", self._home / "data", *arguments],
                user=self._user,
                cwd=self._home,
                stdout=output,
                stderr=output,
                check=True,
                timeout=90,
            )

    def _said(self) -> str:
        output = self._home / "output"
        return output.read_text(errors="replace")[-2000:] if output.exists() else ""
