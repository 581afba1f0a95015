"""A PostgreSQL server for this program alone: on a free port, as an unprivileged user, ended with this program."""

import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
STARTING_S_MAX = 60.0
SETTINGS = {
    "wal_level": "logical",
    "max_replication_slots": "20",
    "max_wal_senders": "20",
    "listen_addresses": "127.0.0.1",
    "fsync": "off",
    "shared_buffers": "64MB",
    "max_wal_size": "4GB",
    "log_min_messages": "fatal",
}


def postgres_programs() -> Path:
    """Return the folder of PostgreSQL's programs, which are installed first where that is needed and allowed."""
    found = subprocess.run([ROOT / "scripts" / "find_postgres.sh"], capture_output=True, text=True)
    if found.returncode:
        raise RuntimeError(f"no PostgreSQL: {found.stderr.strip()}")
    return Path(found.stdout.strip())


def free_port() -> int:
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalPostgres:
    """A server with an empty database; `start` it, and `stop` it. Its user is `holdfast`, and needs no password."""

    def __init__(self, **settings: str) -> None:
        self._programs = postgres_programs()
        self.folder = Path(tempfile.mkdtemp(prefix="holdfast-postgres-"))
        self.port = free_port()
        self._settings = SETTINGS | settings
        self._process: subprocess.Popen[bytes] | None = None
        self._as_user = ["setpriv", "--pdeathsig", "QUIT"]
        if os.getuid() == 0:
            user = next(each for each in pwd.getpwall() if each.pw_name in ("postgres", "nobody"))
            self._as_user += [f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]
            os.chown(self.folder, user.pw_uid, user.pw_gid)
        made = [self._programs / "initdb", "-D", self._data, "-A", "trust", "-U", "holdfast", "--no-sync", "-E", "UTF8"]
        self._run([*made, "--locale=C"])

    @property
    def _data(self) -> Path:
        return self.folder / "data"

    @property
    def dsn(self) -> str:
        return f"host=127.0.0.1 port={self.port} user=holdfast dbname=postgres"

    def program(self, name: str) -> str:
        """Return the path of a program of PostgreSQL's, such as `pgbench`."""
        return str(self._programs / name)

    def start(self, **settings: str) -> "LocalPostgres":
        self._settings |= settings
        options = [part for name, value in self._settings.items() for part in ("-c", f"{name}={value}")]
        command = [self._programs / "postgres", "-D", self._data, "-p", str(self.port), "-k", self.folder, *options]
        with (self.folder / "log").open("ab") as log:
            deadline_s = time.monotonic() + STARTING_S_MAX
            while True:
                self._process = subprocess.Popen([*self._as_user, *command], cwd=self.folder, stdout=log, stderr=log)
                while self._process.poll() is None:
                    if self._answers():
                        return self
                    time.sleep(0.05)
                if time.monotonic() > deadline_s:
                    raise RuntimeError(f"PostgreSQL does not start: {(self.folder / 'log').read_text()[-2000:]}")
                time.sleep(0.1)  # processes that a killed server left are still ending

    def _answers(self) -> bool:
        ready = [self._programs / "pg_isready", "-q", "-h", "127.0.0.1", "-p", str(self.port)]
        return subprocess.run(ready).returncode == 0

    def kill(self) -> None:
        """End the server as a crash would."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End the server, and remove its files."""
        self._end(signal.SIGQUIT)
        shutil.rmtree(self.folder, ignore_errors=True)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(how)
            self._process.wait(30)

    def _run(self, command: list[Any]) -> None:
        done = subprocess.run([*self._as_user, *command], cwd=self.folder, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{command[0]} failed: {done.stderr}")

    def execute(self, sql: str, parameters: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement, committed at once."""
        import psycopg2

        with closing(psycopg2.connect(self.dsn)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall()) if cursor.description else []
