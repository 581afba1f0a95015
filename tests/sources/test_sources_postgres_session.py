"""Settings of roles, databases and environments change neither a snapshot nor the stream; hidden rows are refused."""

from contextlib import closing

import pytest
from sources_postgres_server import assert_equal, job_of

import holdfast as hf
from holdfast.errors import JobRefused
from holdfast.sources.postgres.reader import RECONNECT_S_MAX, RECONNECT_S_MIN, Reader
from holdfast.sources.postgres.server import Server, ServerAway
from holdfast.sources.postgres.session import SETTINGS
from holdfast.testing import run
from sampling import some

HOSTILE = {
    "DateStyle": "German, DMY",
    "IntervalStyle": "sql_standard",
    "extra_float_digits": "-15",
    "bytea_output": "escape",
    "TimeZone": "Asia/Kolkata",
    "search_path": "nowhere",
    "standard_conforming_strings": "off",
    "client_encoding": "LATIN1",
    "statement_timeout": "1ms",
    "lock_timeout": "1ms",
    "idle_in_transaction_session_timeout": "1ms",
    "idle_session_timeout": "1s",
    "default_transaction_isolation": "serializable",
    "default_transaction_read_only": "on",
    "default_transaction_deferrable": "on",
    "row_security": "on",
    "synchronous_commit": "off",
}


@pytest.fixture
def odd_role(database):
    """The DSN of a role whose settings are all unusual."""
    database.execute("DROP ROLE IF EXISTS odd; CREATE ROLE odd LOGIN REPLICATION")
    for name, value in HOSTILE.items():
        quoted = "nowhere" if name == "search_path" else f"'{value}'"
        database.execute(f"ALTER ROLE odd SET {name} = {quoted}")
    yield database.server.dsn.replace("user=holdfast", "user=odd")
    database.execute("DROP OWNED BY odd; DROP ROLE odd")


@pytest.mark.parametrize("replication", [False, True])
def test_every_session_has_the_settings_of_a_dump(odd_role, monkeypatch, replication):
    for variable, value in {"PGDATESTYLE": "German", "PGTZ": "Asia/Tokyo", "PGCLIENTENCODING": "LATIN1"}.items():
        monkeypatch.setenv(variable, value)
    server = Server(f"{odd_role} options='-c work_mem=5MB'", "source 'a'")
    with closing(server.connect(replication=replication)) as connection, connection.cursor() as cursor:
        for name, value in [*SETTINGS.items(), ("client_encoding", "UTF8"), ("work_mem", "5MB")]:
            cursor.execute("SELECT pg_catalog.current_setting(%s, true)", (name,))
            (found,) = cursor.fetchone()
            assert found == value or (found is None and name == "transaction_timeout"), name


@pytest.mark.parametrize("settings", some([{"snapshot": "initial"}, {"snapshot": "chunked"}, {"before": "key"}], 1))
def test_values_are_the_same_for_a_role_with_settings_of_its_own(database, odd_role, tmp_path, settings):
    columns = "id int PRIMARY KEY, at timestamptz, on_day date, span interval, ratio float8, single real, raw bytea"
    tables = database.create("a", columns=f"{columns}, name text, big text", full="before" not in settings)
    database.execute(f"GRANT SELECT ON {tables[0]} TO odd")
    row = (
        "'2024-02-03 04:05:06+07', '2024-02-03', '1 mon -2 days 03:04:05', 0.1::float8 + 0.2, 1::real / 4, "
        r"'\x00ff27'::bytea, E'Gr\u00fc\u00dfe \u20ac \\ ''', (SELECT string_agg(md5(n::text), '') FROM "
        "generate_series(1, 260) n)"
    )
    database.execute(f"INSERT INTO {tables[0]} SELECT n, {row} FROM generate_series(1, 3) n")

    def go():
        source = hf.PostgresCdcSource(odd_role, database.slot, database.publication, tables, **settings)
        run(job_of(source, tables, tmp_path))

    go()
    database.execute(f"UPDATE {tables[0]} SET id = 9 WHERE id = 1; UPDATE {tables[0]} SET ratio = 1e300 WHERE id = 2")
    database.execute(f"INSERT INTO {tables[0]} SELECT 5, {row}")
    go()
    assert_equal(database, tmp_path)


def test_rows_that_row_level_security_hides_are_refused_and_those_who_bypass_it_read(database, tmp_path):
    tables = database.create("a", columns="id int PRIMARY KEY, name text")
    database.execute(f"INSERT INTO {tables[0]} VALUES (1, 'mine'), (2, 'theirs')")
    database.execute("DROP ROLE IF EXISTS partly; CREATE ROLE partly LOGIN REPLICATION")
    database.execute(
        f"GRANT SELECT ON {tables[0]} TO partly; ALTER TABLE {tables[0]} ENABLE ROW LEVEL SECURITY; "
        f"CREATE POLICY half ON {tables[0]} USING (name = 'mine')"
    )
    dsn = database.server.dsn.replace("user=holdfast", "user=partly")
    try:
        source = hf.PostgresCdcSource(dsn, database.slot, database.publication, tables)
        with pytest.raises(JobRefused, match=f"hides rows of table {tables[0]} from user 'partly'.*BYPASSRLS"):
            run(job_of(source, tables, tmp_path))
        with pytest.raises(JobRefused, match="row-level security"):
            Server(dsn, "source 'a'").query(f"SELECT * FROM {tables[0]}")
        database.execute("ALTER ROLE partly BYPASSRLS")
        run(job_of(hf.PostgresCdcSource(dsn, database.slot, database.publication, tables), tables, tmp_path))
        assert_equal(database, tmp_path)
    finally:
        database.execute("DROP OWNED BY partly; DROP ROLE partly")


def test_the_pause_before_a_server_is_tried_again_begins_anew_after_a_good_stream(monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("holdfast.sources.postgres.reader.time.monotonic", lambda: now_s[0])
    reader = object.__new__(Reader)
    reader._away_since_s, reader._settings = None, type("Settings", (), {"outage_timeout_s": 600.0})
    pauses = []
    for _ in range(8):
        pauses.append(reader._note_away(ServerAway("away")))
        now_s[0] += pauses[-1]
    assert pauses[0] == RECONNECT_S_MIN and pauses[-1] == RECONNECT_S_MAX
    reader._away_since_s = None  # as `_begin` has it once the stream is there
    assert reader._note_away(ServerAway("away")) == RECONNECT_S_MIN
