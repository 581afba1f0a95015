"""The PostgreSQL server: connections, the checks before a start, its catalog, and the slot.

psycopg2 is imported when a connection is made, since it is an extra of Holdfast.
"""

import select
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any

from holdfast.errors import JobRefused, StorageError
from holdfast.ids import Epoch
from holdfast.sources.postgres.columns import SESSION, PublishedColumn, TableColumns

VERSION_MIN = 150_000
APPLICATION = "holdfast"
"""Beginning of the application name of connections, as `pg_stat_activity` shows it."""
MARK = "holdfast"
"""Prefix of the logical messages that readers write into the WAL to learn how far they have come."""


class ServerAway(StorageError):
    """The server does not answer, or ended a connection: perhaps for a moment only."""


@dataclass(frozen=True)
class ReaderName:
    """The application name of a reader's connections: `holdfast <job's id>.<source> <epoch>`.

    It says of two readers who took over later.
    """

    job: str
    epoch: Epoch

    def __str__(self) -> str:
        return f"{APPLICATION} {self.job} {self.epoch}"

    @staticmethod
    def parse(application: str) -> "ReaderName | None":
        """Return the name that a connection tells; None if it is not the name of a reader."""
        parts = application.split(" ")
        if len(parts) != 3 or parts[0] != APPLICATION or not parts[2].isdecimal():
            return None
        return ReaderName(parts[1], Epoch(int(parts[2])))


@dataclass(frozen=True)
class SlotState:
    """A row of `pg_replication_slots`. `kept_bytes`: size of the WAL that the server keeps for the slot."""

    plugin: str
    database: str
    active_pid: int | None
    active_application: str
    confirmed_lsn: int
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
            raise JobRefused(f"{self._who} needs psycopg2: pip install 'holdfast[postgres]'") from error
        factory = psycopg2.extras.LogicalReplicationConnection if replication else None
        try:
            made = psycopg2.connect(
                self._dsn,
                options=SESSION,
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
                raise JobRefused(f"{self._who}: the server refuses the connection: {text}") from error
            raise ServerAway(f"{self._who}: the server does not answer: {text}") from error
        if not replication:
            made.autocommit = True
        return made

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run a statement in a connection of its own and return its rows."""
        import psycopg2

        with closing(self.connect()) as connection, connection.cursor() as cursor:
            try:
                cursor.execute(sql, parameters)
                return list(cursor.fetchall()) if cursor.description else []
            except (psycopg2.OperationalError, psycopg2.InterfaceError) as error:
                raise ServerAway(f"{self._who}: the server went away: {str(error).strip()}") from error

    # --- checks -------------------------------------------------------------------------------------------------------

    def check(self, publication: str, tables: Sequence[str], slot: str, *, full_rows: bool) -> None:
        """Raise `JobRefused` for everything that keeps this source from reading."""
        version, wal_level, may_replicate, senders = self.query(
            "SELECT current_setting('server_version_num')::int, current_setting('wal_level'), "
            "(SELECT rolreplication OR rolsuper FROM pg_roles WHERE rolname = current_user), "
            "current_setting('max_wal_senders')::int"
        )[0]
        if version < VERSION_MIN:
            self._refuse(f"the server is PostgreSQL {version // 10_000}, expected 15 or newer: upgrade it")
        if wal_level != "logical":
            self._refuse(
                f"wal_level is {wal_level!r}: set wal_level = logical in postgresql.conf and restart the server"
            )
        if not may_replicate:
            self._refuse("the user may not replicate: ALTER ROLE … REPLICATION")
        if not senders:
            self._refuse("max_wal_senders is 0: raise it and restart the server")
        if not self.query("SELECT 1 FROM pg_publication WHERE pubname = %s", (publication,)):
            listed = ", ".join(tables)
            self._refuse(
                f"there is no publication {publication!r}: CREATE PUBLICATION {publication} FOR TABLE {listed}"
            )
        self._check_tables(publication, tables, full_rows)
        state = self.slot(slot)
        if state is not None:
            self._check_slot(slot, state)

    def _check_tables(self, publication: str, tables: Sequence[str], full_rows: bool) -> None:
        for name in tables:
            found = self.query(
                "SELECT c.relreplident, (SELECT count(*) FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary), "
                "EXISTS (SELECT 1 FROM pg_publication_tables p WHERE p.pubname = %s AND p.schemaname = n.nspname AND "
                "p.tablename = c.relname), has_table_privilege(c.oid, 'SELECT') "
                "FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE n.nspname = %s AND c.relname = %s",
                (publication, *name.split(".", 1)),
            )
            if not found:
                self._refuse(f"there is no table {name}")
            identity, keys, published, readable = found[0]
            if not published:
                self._refuse(
                    f"publication {publication!r} does not have table {name}: "
                    f"ALTER PUBLICATION {publication} ADD TABLE {name}"
                )
            if not keys:
                self._refuse(f"table {name} has no primary key, so its rows cannot be told apart: add one")
            if full_rows and identity != "f":
                self._refuse(
                    f"table {name} has REPLICA IDENTITY {_IDENTITIES.get(identity, identity)}, so updates and deletes "
                    f"do not tell the row before: ALTER TABLE {name} REPLICA IDENTITY FULL, or give before='key'"
                )
            if not full_rows and identity not in "fd":
                self._refuse(
                    f"table {name} has REPLICA IDENTITY {_IDENTITIES.get(identity, identity)}: expected FULL or DEFAULT"
                )
            if not readable:
                self._refuse(f"the user may not read table {name}: GRANT SELECT ON {name} TO …")

    def _check_slot(self, slot: str, state: SlotState) -> None:
        if state.plugin != "pgoutput":
            self._refuse(f"slot {slot!r} uses the plugin {state.plugin!r}, expected 'pgoutput': give another slot")
        if state.wal_status == "lost":
            self._refuse(
                f"slot {slot!r} is lost: the server removed WAL that it needs (max_slot_wal_keep_size). Drop the slot "
                "and start on a new storage, with a snapshot"
            )
        if state.active_pid is not None and not state.active_application.startswith(APPLICATION):
            self._refuse(
                f"slot {slot!r} is in use by process {state.active_pid} ({state.active_application!r}): stop it, or "
                "give another slot"
            )

    def _refuse(self, problem: str) -> None:
        raise JobRefused(f"{self._who}: {problem}")

    # --- catalog ------------------------------------------------------------------------------------------------------

    def table(self, publication: str, name: str, text_columns: Sequence[str]) -> TableColumns:
        """Return a table's published columns."""
        found = self.query(
            "SELECT a.attname, a.atttypid::int8, a.atttypmod, EXISTS (SELECT 1 FROM pg_index i "
            "WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY(i.indkey)) "
            "FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid "
            "JOIN pg_namespace n ON n.oid = c.relnamespace JOIN pg_publication_tables p ON p.pubname = %s AND "
            "p.schemaname = n.nspname AND p.tablename = c.relname AND a.attname = ANY(p.attnames) "
            "WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = '' "
            "ORDER BY a.attnum",
            (publication, *name.split(".", 1)),
        )
        as_text = {each.rpartition(".")[2] for each in text_columns if each.rpartition(".")[0] in ("", name)}
        columns = [PublishedColumn(n, TEXT if n in as_text else oid, modifier, key) for n, oid, modifier, key in found]
        return TableColumns(name, tuple(columns))

    def identity(self) -> str:
        """Return the server's system identifier."""
        return str(self.query("SELECT system_identifier::text FROM pg_control_system()")[0][0])

    # --- slot ---------------------------------------------------------------------------------------------------------

    def slot(self, name: str) -> SlotState | None:
        found = self.query(
            "SELECT s.plugin, s.database, s.active_pid, coalesce(a.application_name, ''), s.confirmed_flush_lsn::text, "
            "coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::int8, coalesce(s.wal_status, 'lost') "
            "FROM pg_replication_slots s LEFT JOIN pg_stat_activity a ON a.pid = s.active_pid WHERE s.slot_name = %s",
            (name,),
        )
        if not found:
            return None
        plugin, database, pid, application, confirmed, kept, status = found[0]
        return SlotState(plugin or "", database or "", pid, application, lsn(confirmed), kept, status)

    def create_slot(self, name: str) -> int:
        """Create the slot and return the LSN from which it tells changes."""
        return lsn(
            self.query("SELECT lsn::text FROM pg_create_logical_replication_slot(%s, 'pgoutput')", (name,))[0][0]
        )

    def drop_slot(self, name: str) -> None:
        self.query("SELECT pg_drop_replication_slot(%s)", (name,))

    def terminate(self, pid: int) -> None:
        self.query("SELECT pg_terminate_backend(%s, 10000)", (pid,))

    def mark(self, content: str) -> None:
        """Write a logical message into the WAL, which the slot tells in its place."""
        self.query("SELECT pg_logical_emit_message(false, %s, %s)", (MARK, content))


TEXT = 25
"""The oid of PostgreSQL's type `text`."""
_IDENTITIES = {"d": "DEFAULT", "n": "NOTHING", "i": "USING INDEX", "f": "FULL"}


def wait_readable(connection: Any, timeout_s: float) -> None:
    """Wait until a connection has something to read, or time is up."""
    select.select([connection], [], [], timeout_s)
