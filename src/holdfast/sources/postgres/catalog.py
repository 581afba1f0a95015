"""The server's catalog: the columns of tables, and checks for everything that would keep a source from reading."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from holdfast.errors import JobRefused
from holdfast.sources.postgres.columns import FACTS, PublishedColumn, TableColumns
from holdfast.sources.postgres.pgoutput import SEQUENCE
from holdfast.sources.postgres.server import APPLICATION, Server, SlotState
from holdfast.sources.truncations import KEY, KIND, PART

VERSION_MIN = 150_000
OWN_COLUMNS = frozenset([*(fact.name for fact in FACTS), SEQUENCE, KIND, PART, KEY])
"""Names of the columns that streams and stored rows have beside the table's own."""
IDENTITIES = {"d": "DEFAULT", "n": "NOTHING", "i": "USING INDEX", "f": "FULL"}
"""Replica identities, by their letters in the catalog and in Relation messages."""
_ANEW = "start on a new storage, with a snapshot and another slot"
_SERVER = """
SELECT current_setting('server_version_num')::int, current_setting('wal_level'), current_user::text,
    EXISTS (SELECT 1 FROM pg_roles WHERE rolname = current_user AND (rolreplication OR rolsuper))
    OR EXISTS (SELECT 1 FROM pg_roles r WHERE rolname = 'rds_replication' AND pg_has_role(r.oid, 'MEMBER')),
    current_setting('max_wal_senders')::int, pg_is_in_recovery()"""
_FACTS = """
SELECT asked.schema || '.' || asked.name, coalesce(c.oid, 0)::int8, c.relkind, c.relreplident,
    EXISTS (SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
    p.tablename IS NOT NULL, coalesce(p.rowfilter, ''), has_table_privilege(c.oid, 'SELECT'), current_user::text,
    coalesce(row_security_active(c.oid), false)
FROM unnest(%s::text[], %s::text[]) AS asked(schema, name)
LEFT JOIN (pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace)
    ON n.nspname = asked.schema AND c.relname = asked.name
LEFT JOIN pg_publication_tables p
    ON p.pubname = %s AND p.schemaname = asked.schema AND p.tablename = asked.name"""
_COLUMNS = """
SELECT a.attname, a.atttypid::int8, a.atttypmod, EXISTS (
    SELECT 1 FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary AND a.attnum = ANY(i.indkey))
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid JOIN pg_namespace n ON n.oid = c.relnamespace
JOIN pg_publication_tables p ON p.pubname = %s AND p.schemaname = n.nspname AND p.tablename = c.relname
    AND a.attname = ANY(p.attnames)
WHERE n.nspname = %s AND c.relname = %s AND a.attnum > 0 AND NOT a.attisdropped AND a.attgenerated = ''
ORDER BY a.attnum"""


@dataclass(frozen=True)
class TableFacts:
    """Facts of a table in the catalog.

    `oid` 0: there is no table of this name. `kind`: `r`, or `p` for a partitioned table; other kinds are no tables.
    `hides_rows`: row-level security hides some rows from `user`.
    """

    name: str
    oid: int
    kind: str
    identity: str
    has_key: bool
    is_published: bool
    row_filter: str
    is_readable: bool
    user: str
    hides_rows: bool


class Catalog:
    """The catalog for a source with this publication. `who` names the source in errors."""

    def __init__(self, server: Server, who: str, publication: str, truncate: str) -> None:
        self._server = server
        self._who = who
        self._publication = publication
        self._truncate = truncate

    def check(self, tables: Sequence[str], slot: str, *, full_rows: bool) -> None:
        """Raise `JobRefused` for everything that keeps this source from reading."""
        self._check_server()
        self._check_publication(tables)
        for facts in self._facts(tables):
            self._check_table(facts, full_rows)
        state = self._server.slot(slot)
        if state is None:
            return
        self.check_slot(slot, state)
        # A holder without a name may be a process that is just ending; the reader's claim waits for it.
        if state.active_application and not state.active_application.startswith(APPLICATION):
            self._refuse(
                f"slot {slot!r} is in use by process {state.active_pid} ({state.active_application!r}): stop it, or "
                "give another slot"
            )

    def check_running(self, tables: Mapping[str, TableColumns]) -> None:
        """Raise `JobRefused` if the stream no longer contains all changes of these tables."""
        self._check_publication(list(tables), f", and {_ANEW}")
        for facts in self._facts(list(tables)):
            table = tables[facts.name]
            if not facts.oid:
                self._refuse(f"table {facts.name} is gone, or has another name now. To go on with another: {_ANEW}")
            if facts.oid != table.oid:
                self._refuse(made_anew(facts.name))
            if not facts.is_published:
                self._refuse(
                    f"publication {self._publication!r} does not have table {facts.name} any more, and changes since "
                    f"then are not told: ALTER PUBLICATION {self._publication} ADD TABLE {facts.name}, and {_ANEW}"
                )
            if facts.row_filter != table.row_filter:
                self._refuse(
                    f"publication {self._publication!r} has another row filter for table {facts.name} now, "
                    f"{facts.row_filter or 'none'} instead of {table.row_filter or 'none'}, and rows that it lets in "
                    f"or shuts out by that are not told: {_ANEW}"
                )

    def check_slot(self, slot: str, state: SlotState) -> None:
        """Raise `JobRefused` if a slot cannot be read, even if no other program reads it at the moment."""
        if not state.plugin:
            self._refuse(f"slot {slot!r} is a physical slot, for a standby server: give another slot")
        if state.plugin != "pgoutput":
            self._refuse(f"slot {slot!r} uses the plugin {state.plugin!r}, expected 'pgoutput': give another slot")
        if not state.is_here:
            self._refuse(
                f"slot {slot!r} is of database {state.database!r}: give another slot, or connect to that database"
            )
        if state.wal_status == "lost":
            self._refuse(
                f"slot {slot!r} is lost: the server removed WAL that it needs (max_slot_wal_keep_size). Drop the slot "
                "and start on a new storage, with a snapshot"
            )

    def table(self, name: str, text_columns: Sequence[str]) -> TableColumns:
        """Return a table's published columns."""
        as_text = {each.rpartition(".")[2] for each in text_columns if each.rpartition(".")[0] in ("", name)}
        found = self._server.query(_COLUMNS, (self._publication, *name.split(".", 1)))
        columns = [PublishedColumn(n, oid, modifier, key, n in as_text) for n, oid, modifier, key in found]
        (facts,) = self._facts([name])
        taken = sorted({column.name for column in columns} & OWN_COLUMNS)
        if taken:
            others = ", ".join(column.name for column in columns if column.name not in OWN_COLUMNS)
            self._refuse(
                f"table {name} has a column {taken[0]!r}, a name that the source gives to a column of its own: rename "
                f"it, or publish the other columns: ALTER PUBLICATION {self._publication} SET TABLE {name} ({others})"
            )
        return TableColumns(name, tuple(columns), facts.oid, facts.row_filter, facts.kind == "p")

    # --- single checks ------------------------------------------------------------------------------------------------

    def _facts(self, tables: Sequence[str]) -> list[TableFacts]:
        schemas, names = zip(*(name.split(".", 1) for name in tables), strict=True)
        return [TableFacts(*row) for row in self._server.query(_FACTS, (list(schemas), list(names), self._publication))]

    def _check_server(self) -> None:
        version, wal_level, user, may_replicate, senders, is_standby = self._server.query(_SERVER)[0]
        if version < VERSION_MIN:
            self._refuse(f"the server is PostgreSQL {version // 10_000}, expected 15 or newer: upgrade it")
        if is_standby:
            self._refuse("the server is a standby, which can be read only: give the primary server's DSN")
        if wal_level != "logical":
            self._refuse(
                f"wal_level is {wal_level!r}: set wal_level = logical in postgresql.conf and restart the server"
            )
        if not may_replicate:
            self._refuse(
                f"user {user!r} may not replicate: ALTER ROLE {user} REPLICATION (on Amazon RDS: GRANT rds_replication "
                f"TO {user})"
            )
        if not senders:
            self._refuse("max_wal_senders is 0: raise it and restart the server")

    def _check_publication(self, tables: Sequence[str], then: str = "") -> None:
        """Refuse a publication that is gone or publishes only some changes; `then`: the remedy beside its statement."""
        name = self._publication
        found = self._server.query(
            "SELECT pubinsert, pubupdate, pubdelete, pubtruncate FROM pg_publication WHERE pubname = %s", (name,)
        )
        if not found:
            self._refuse(
                f"there is no publication {name!r}: CREATE PUBLICATION {name} FOR TABLE {', '.join(tables)}{then}"
            )
        kinds = dict(zip(("insert", "update", "delete", "truncate"), found[0], strict=True))
        missing = [kind for kind, is_told in kinds.items() if not is_told]
        if missing and (missing != ["truncate"] or self._truncate != "ignore"):
            self._refuse(
                f"publication {name!r} does not tell of {', '.join(missing)}: ALTER PUBLICATION {name} SET "
                f"(publish = 'insert, update, delete, truncate'){then}"
                + ("; or give truncate='ignore'" if missing == ["truncate"] else "")
            )

    def _check_table(self, facts: TableFacts, full_rows: bool) -> None:
        name, publication = facts.name, self._publication
        identity = IDENTITIES.get(facts.identity, facts.identity)
        if not facts.oid:
            self._refuse(f"there is no table {name}")
        if facts.kind not in "rp":
            self._refuse(f"{name} is no table; the changes of views and foreign tables are not told: read their tables")
        if full_rows and facts.kind == "p":
            self._refuse(
                f"table {name} is partitioned, and each of its partitions has a REPLICA IDENTITY of its own, so that "
                "the row before a change may be told in part: give before='key', or read the partitions"
            )
        if not facts.is_published:
            way = "SET (publish_via_partition_root = true)" if facts.kind == "p" else f"ADD TABLE {name}"
            self._refuse(
                f"publication {publication!r} does not have table {name}: ALTER PUBLICATION {publication} {way}"
            )
        if not facts.has_key:
            self._refuse(f"table {name} has no primary key, so its rows cannot be told apart: add a primary key")
        if full_rows and facts.identity != "f":
            self._refuse(
                f"table {name} has REPLICA IDENTITY {identity}, so updates and deletes "
                f"do not tell the row before: ALTER TABLE {name} REPLICA IDENTITY FULL, or give before='key'"
            )
        if not full_rows and facts.identity not in "fd":
            self._refuse(f"table {name} has REPLICA IDENTITY {identity}: expected FULL or DEFAULT")
        if not facts.is_readable:
            self._refuse(f"user {facts.user!r} may not read table {name}: GRANT SELECT ON {name} TO {facts.user}")
        if facts.hides_rows:
            self._refuse(
                f"row-level security hides rows of table {name} from user {facts.user!r}, so that a snapshot would "
                f"lack them: ALTER ROLE {facts.user} BYPASSRLS, or connect as a user who has it"
            )

    def _refuse(self, problem: str) -> None:
        raise JobRefused(f"{self._who}: {problem}")


def made_anew(table: str) -> str:
    """Describe the problem of a table whose name now belongs to another table."""
    return (
        f"table {table} was dropped and made anew, or another table has its name now; the server does not tell that "
        f"the rows of before are gone: {_ANEW}"
    )
