"""The PostgreSQL server: connections, statements, and the slot.

psycopg2 is imported when a connection is made, since it is an extra of Holdfast.
"""

import re
import select
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from holdfast.errors import JobRefused, StorageError
from holdfast.hidden import chained, passwords_of, remember, remember_environment
from holdfast.ids import Epoch
from holdfast.sources.postgres.session import fix_settings

APPLICATION = "holdfast"
"""Beginning of the application name of connections, as `pg_stat_activity` shows it."""
MARK = "holdfast"
"""Prefix of the logical messages that readers write into the WAL to learn how far they have come."""


_AMBIGUOUS = re.compile(r"\s*postgres(ql)?://[^?]*(@[^?/]*@|/[^?]*@)")
"""URLs in which libpq mistakes parts of a password for a host, port or database, and shows them in its errors."""


class ServerAway(StorageError):
    """The server does not answer, or ended a connection; the cause may pass by itself."""


@dataclass(frozen=True)
class ReaderName:
    """The application name of a reader's connections: `holdfast <job's id>.<source> <epoch>`. Of two readers, the one
    with the higher epoch took over later.
    """

    job: str
    epoch: Epoch

    def __str__(self) -> str:
        return f"{APPLICATION} {self.job} {self.epoch}"

    @staticmethod
    def parse(application: str) -> "ReaderName | None":
        """Return the name that a connection gave itself; None if it is not the name of a reader."""
        parts = application.split(" ")
        if len(parts) != 3 or parts[0] != APPLICATION or not parts[2].isdecimal():
            return None
        return ReaderName(parts[1], Epoch(int(parts[2])))


@dataclass(frozen=True)
class SlotState:
    """A row of `pg_replication_slots`.

    `plugin`: "" for a physical slot. `is_here`: the slot is of the database of this connection. `kept_bytes`: size of
    the WAL that the server keeps for the slot.
    """

    confirmed_lsn: int
    plugin: str
    database: str
    is_here: bool
    active_pid: int | None
    active_application: str
    kept_bytes: int
    wal_status: str


def lsn(text: str | None) -> int:
    """Return an LSN as a number; 0 for null."""
    if not text:
        return 0
    high, _, low = text.partition("/")
    return int(high, 16) << 32 | int(low, 16)


def lsn_text(number: int) -> str:
    return f"{number >> 32:X}/{number & 0xFFFFFFFF:X}"


class Server:
    """A server by its DSN. `who` names the source in errors."""

    def __init__(self, dsn: str, who: str, application: str = APPLICATION) -> None:
        remember(*passwords_of(dsn))
        self._dsn = dsn
        self._who = who
        self._application = application

    def named(self, application: str) -> "Server":
        """Return the same server, for connections of that name."""
        return Server(self._dsn, self._who, application)

    def connect(self, *, replication: bool = False) -> Any:
        """Open a connection; raises `JobRefused` without psycopg2 or access, `ServerAway` if nothing answers."""
        try:
            import psycopg2
            import psycopg2.extras
        except ImportError as error:
            raise JobRefused(f"{self._who} needs psycopg2: pip install 'holdfast[postgres]'") from chained(error)
        factory = psycopg2.extras.LogicalReplicationConnection if replication else None
        self._check_dsn()
        # A time limit for statements would apply before the session's settings can be fixed.
        options = f"{psycopg2.extensions.parse_dsn(self._dsn).get('options', '')} -c statement_timeout=0"
        try:
            made = psycopg2.connect(
                self._dsn,
                options=options.strip(),
                client_encoding="UTF8",
                connection_factory=factory,
                application_name=self._application,
                connect_timeout=10,
                keepalives_idle=30,
            )
        except psycopg2.OperationalError as error:
            text = str(error).strip()
            if any(
                each in text for each in ("authentication failed", "does not exist", "no pg_hba.conf", "permission")
            ):
                raise JobRefused(f"{self._who}: the server refuses the connection: {text}") from chained(error)
            raise ServerAway(f"{self._who}: the server does not answer: {text}") from chained(error)
        try:
            if not replication:
                made.autocommit = True
            fix_settings(made)
        except psycopg2.Error as error:
            made.close()
            raise told_by_server(self._who, error) from chained(error)
        return made

    def _check_dsn(self) -> None:
        import psycopg2
        from psycopg2.extensions import parse_dsn

        try:
            if _AMBIGUOUS.match(self._dsn):
                raise JobRefused(
                    f"{self._who}: the dsn has more than one '@', or one behind a '/': in a URL, write %40 for '@' and "
                    "%2F for '/' in user, password and database"
                )
            remember(parse_dsn(self._dsn).get("password", ""))
            remember_environment()
        except psycopg2.ProgrammingError:  # its text may show a password
            raise JobRefused(
                f"{self._who}: the dsn cannot be read: expected libpq's form, 'host=… dbname=… user=…' or "
                "'postgresql://user@host/dbname'"
            ) from None

    def query(self, sql: str, parameters: Sequence[Any] | None = None) -> list[tuple[Any, ...]]:
        """Run a statement in a separate connection and return its rows.

        With parameters, a literal percent sign in the statement is written twice.
        """
        import psycopg2

        with closing(self.connect()) as connection, connection.cursor() as cursor:
            try:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall()) if cursor.description else []
            except psycopg2.Error as error:
                raise told_by_server(self._who, error) from chained(error)

    # --- the server and its slot --------------------------------------------------------------------------------------

    def identity(self) -> str:
        """Return the server's system identifier."""
        return str(self.query("SELECT system_identifier::text FROM pg_control_system()")[0][0])

    def slot(self, name: str) -> SlotState | None:
        found = self.query(
            "SELECT s.confirmed_flush_lsn::text, coalesce(s.plugin, ''), coalesce(s.database, ''), "
            "coalesce(s.database = current_database(), false), s.active_pid, coalesce(a.application_name, ''), "
            "coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::int8, coalesce(s.wal_status, 'lost') "
            "FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s",
            (name,),
        )
        if not found:
            return None
        confirmed, *facts = found[0]
        return SlotState(lsn(confirmed), *facts)

    def create_slot(self, name: str) -> int:
        """Create the slot; return the LSN from which on it sends changes."""
        return lsn(
            self.query("SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))[0][0]
        )

    def drop_slot(self, name: str) -> None:
        self.query("SELECT pg_drop_replication_slot(%s)", (name,))

    def terminate(self, pid: int) -> None:
        self.query("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    def mark(self, content: str) -> None:
        """Write a logical message into the WAL; the slot sends it among the changes, in order.

        The statement takes a transaction's number, because otherwise the server would not write out the WAL at once.
        """
        self.query("SELECT txid_current(), pg_logical_emit_message(false, %s, %s)", (MARK, content))


def wait_readable(connection: Any, timeout_s: float) -> None:
    """Wait until a connection has something to read, or time is up."""
    select.select([connection], [], [], timeout_s)


def told_by_server(who: str, error: Any) -> StorageError | JobRefused:
    """Return an error of psycopg2 as `ServerAway` if it may pass by itself, else as `JobRefused`."""
    import psycopg2

    text = ". ".join(filter(None, (error.diag.message_primary, error.diag.message_hint))) or str(error).strip()
    if isinstance(error, psycopg2.InterfaceError):
        return ServerAway(f"{who}: the connection to the server was lost: {text}")
    code = error.pgcode or ""
    is_passing = isinstance(error, psycopg2.OperationalError) and not code.startswith(_LASTING)
    is_ended = not code and any(each in text for each in ("terminat", "closed the connection", _SILENT))
    if is_passing or is_ended:
        return ServerAway(f"{who}: the server ended the connection" + ("" if _SILENT in text else f": {text}"))
    if code == "42704" and "publication" in text:  # it exists now: otherwise the catalog's checks would have refused it
        text += "; it did not when these changes were made: start on a new storage, with a snapshot and another slot"
    return JobRefused(f"{who}: the server refuses: {text}")


_SILENT = "no message from the libpq"
"""Part of psycopg2's error for a connection that was closed without a word."""
_LASTING = ("55", "53400", "58P01")
"""Prefixes of the SQLSTATE of operational errors that last until a person acts: an object in a wrong state, no free
replication slot, removed WAL."""
