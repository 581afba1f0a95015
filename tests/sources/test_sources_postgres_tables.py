"""Tables whose rows lie in other tables too, names that need quotes, and stored chunks that somebody has changed."""

import msgspec
import pytest
from sources_postgres_server import assert_equal, copied, job_of

import holdfast as hf
from holdfast.errors import CorruptObject, JobRefused, QueryFailed
from holdfast.sources.postgres.chunks import _literal, check_frontiers
from holdfast.sources.postgres.columns import PublishedColumn, TableColumns
from holdfast.sources.postgres.slot_head import SlotHead
from holdfast.sources.postgres.writer import SegmentWriter
from holdfast.sources.spooled.segments import MAGIC, VERSION, decode_head
from holdfast.storage import framing
from holdfast.storage.store import open_store
from holdfast.testing import run
from sampling import some

NO_RESTARTS = hf.FailoverConfig(restarts_max=0)
UUID_TEXT = "20000000-0000-0000-0000-000000000000"


@pytest.mark.parametrize("settings", some([{"snapshot": "initial"}, {"snapshot": "chunked"}, {"before": "key"}], 1))
def test_rows_of_a_table_that_inherits_are_not_in_the_stream_of_its_parent(database, tmp_path, settings):
    (city,) = database.create("city", columns="id int PRIMARY KEY, name text, big text", full="before" not in settings)
    capital = f"{city}_capital"
    database.execute(
        f"CREATE TABLE {capital} () INHERITS ({city}); ALTER TABLE {capital} ADD PRIMARY KEY (id); "
        f"ALTER TABLE {city} ALTER big SET STORAGE EXTERNAL; ALTER TABLE {capital} ALTER big SET STORAGE EXTERNAL; "
        f"INSERT INTO {city} VALUES (1, 'Bonn', repeat('b', 9000)); "
        f"INSERT INTO {capital} VALUES (1, 'Rome', repeat('r', 9000)), (2, 'Paris', 'p')"
    )
    try:
        for change in ("SELECT", f"UPDATE {capital} SET name = name || '!'; UPDATE {city} SET name = name || '?'"):
            database.execute(change)
            run(job_of(database.source(**settings), [city], tmp_path))
            expected = database.execute(f"SELECT id, name, big FROM ONLY {city}")
            assert [tuple(row.values())[:3] for row in copied(tmp_path, 0)] == expected
    finally:
        database.execute(f"DROP TABLE {capital}")


@pytest.mark.parametrize("snapshot", some(["initial", "chunked"], 1))
def test_a_partitioned_table_has_the_rows_of_its_partitions(database, tmp_path, snapshot):
    table = f"public.{database.prefix}_parts"
    database.tables.append(table)
    database.execute(
        f"CREATE TABLE {table} (id int PRIMARY KEY, name text) PARTITION BY RANGE (id); "
        f"CREATE TABLE {table}_low PARTITION OF {table} FOR VALUES FROM (0) TO (10); "
        f"CREATE TABLE {table}_high PARTITION OF {table} FOR VALUES FROM (10) TO (20); "
        f"INSERT INTO {table} VALUES (1, 'a'), (11, 'b'); "
        f"CREATE PUBLICATION {database.publication} FOR TABLE {table} WITH (publish_via_partition_root = true)"
    )
    for change in ("SELECT", f"UPDATE {table} SET name = name || '!', id = 20 - id"):
        database.execute(change)
        run(job_of(database.source(snapshot=snapshot, before="key"), [table], tmp_path))
        assert_equal(database, tmp_path)


@pytest.mark.parametrize(
    "settings", some([{"snapshot": "initial"}, {"snapshot": "chunked", "chunk_rows": 1, "before": "key"}], 1)
)
def test_names_with_quotes_and_percent_signs_are_names(database, tmp_path, settings):
    name = f'{database.prefix[-20:]}_It\'s "50%s" \\ done'
    quoted = "public." + '"' + name.replace('"', '""') + '"'
    database.publication = publication = f'Pub,{database.prefix[-20:]} %s "x"\''
    database.tables.append(f"public.{name}")
    column = '"big""%s""\'"'
    try:
        database.server.execute(f"CREATE TABLE {quoted} (id int PRIMARY KEY, name text, {column} text)")
        database.execute(f"ALTER TABLE {quoted} ALTER {column} SET STORAGE EXTERNAL")
        if "before" not in settings:
            database.execute(f"ALTER TABLE {quoted} REPLICA IDENTITY FULL")
        database.execute(f"INSERT INTO {quoted} VALUES (1, 'a', repeat('x', 9000)), (2, 'b', 'c')")
        made = publication.replace('"', '""')
        database.execute(f'CREATE PUBLICATION "{made}" FOR TABLE {quoted}')
        for change in ("SELECT", f"UPDATE {quoted} SET name = name || '!'; INSERT INTO {quoted} VALUES (3, 'd', 'e')"):
            database.execute(change)
            run(job_of(database.source(**settings), database.tables, tmp_path))
            rows = [tuple(row.values())[:3] for row in copied(tmp_path, 0)]
            assert rows == database.execute(f"SELECT * FROM {quoted} ORDER BY id")
    finally:
        database.drop_slot()
        database.execute(f'DROP PUBLICATION IF EXISTS "{made}"; DROP TABLE IF EXISTS {quoted}')
        database.tables.clear()
        database.publication = "none"


@pytest.mark.parametrize(
    ("kind", "key"),
    some(
        [
            ("uuid", f"'{UUID_TEXT}'"),
            ("char(4)", "'ab'"),
            ("timestamptz", "'2024-01-01 10:00+02'"),
            ("bytea", r"'\x00ff'"),
            ("numeric", "1.50"),
            ("mood", "'ab'"),
        ],
        2,
        5,
    ),
)
def test_large_values_are_read_back_by_keys_of_any_type(database, tmp_path, kind, key):
    if kind == "mood":
        database.execute("DROP TYPE IF EXISTS mood; CREATE TYPE mood AS ENUM ('ab', 'cd')")
    tables = database.create("a", columns=f"id {kind} PRIMARY KEY, name text, big text", full=False)
    text = "SELECT string_agg(md5(n::text), '') FROM generate_series(1, 260) n"
    database.execute(f"INSERT INTO {tables[0]} SELECT {key}, 'first', ({text})")
    for change in ("SELECT", f"UPDATE {tables[0]} SET name = 'second'"):
        database.execute(change)
        run(job_of(database.source(before="key"), tables, tmp_path))
    [row] = copied(tmp_path, 0)
    assert [(row["name"], row["big"])] == database.execute(f"SELECT name, big FROM {tables[0]}")


def keyed(type_oid: int) -> dict[str, TableColumns]:
    return {"public.a": TableColumns("public.a", (PublishedColumn("id", type_oid, -1, key=True),))}


@pytest.mark.parametrize(
    ("type_oid", "bound"),
    [
        (23, "1'; DROP TABLE a; --"),
        (23, "1"),
        (23, True),
        (23, 2**63),
        (23, UUID_TEXT),
        (2950, "x' OR true OR id > '"),
        (2950, f"{{{UUID_TEXT}}}"),
        (2950, 7),
        (25, 7),
        (25, UUID_TEXT),
    ],
)
def test_a_stored_bound_that_is_no_key_of_its_table_is_refused_by_name(type_oid, bound):
    with pytest.raises(CorruptObject, match=r"segments/1: the chunked snapshot of table public\.a stands at"):
        check_frontiers("segments/1", {"public.a": bound}, keyed(type_oid))


def test_stored_bounds_that_are_keys_are_taken_and_tables_that_the_source_has_not_are_refused():
    check_frontiers("segments/1", {"public.a": None}, keyed(25))
    check_frontiers("segments/1", {"public.a": -(2**63) + 1}, keyed(20))
    check_frontiers("segments/1", {"public.a": UUID_TEXT}, keyed(2950))
    with pytest.raises(JobRefused, match=r"not read table 'public.b' to its end, and the source has only public.a"):
        check_frontiers("segments/1", {"public.b": 1}, keyed(23))
    with pytest.raises(ValueError, match="badly formed"):
        _literal("x'::uuid OR true")


@pytest.mark.parametrize("snapshot", some(["initial", "chunked", "never"], 1))
def test_a_text_in_a_stored_chunk_reaches_no_statement_whatever_the_snapshot_is(
    database, tmp_path, monkeypatch, snapshot
):
    tables = database.create("a", columns="id int PRIMARY KEY, name text")
    database.execute(f"INSERT INTO {tables[0]} SELECT n, 'first' FROM generate_series(1, 30) n")
    written = SegmentWriter.write

    def breaks(self, piece):
        print("PIECE", piece.chunks, tables)
        if piece.chunks == {tables[0]: 21}:
            raise RuntimeError("ends here")
        return written(self, piece)

    monkeypatch.setattr(SegmentWriter, "write", breaks)
    with pytest.raises((JobRefused, QueryFailed), match="ends here"):
        run(job_of(database.source(snapshot="chunked", chunk_rows=10), tables, tmp_path, failover=NO_RESTARTS))
    monkeypatch.setattr(SegmentWriter, "write", written)
    store = open_store(f"file://{tmp_path}/job")
    last = max((each.name for each in store.list("segments/")), key=lambda name: name.rpartition("/")[2])
    rewrite_chunks(store, last, {tables[0]: f"0; DROP TABLE {tables[0]}; --"})
    with pytest.raises(CorruptObject, match=f"{last}: the chunked snapshot of table {tables[0]} stands at '0; DROP"):
        run(job_of(database.source(snapshot=snapshot, chunk_rows=10), tables, tmp_path))
    assert database.execute(f"SELECT count(*) FROM {tables[0]}") == [(30,)]


def rewrite_chunks(store, name: str, chunks: dict[str, object]) -> None:
    data = store.get(name)
    length = int.from_bytes(data[-4:], "little")
    head = msgspec.structs.replace(decode_head(name, data, SlotHead), chunks=chunks)
    framed = framing.frame(MAGIC, VERSION, msgspec.msgpack.encode(head))
    store.put(name, data[: -4 - length] + framed + len(framed).to_bytes(4, "little"))
