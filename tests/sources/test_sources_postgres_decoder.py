"""The decoder of `pgoutput`: bytes of a real server, and any changes against a plain decoder."""

from datetime import UTC, date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sources_postgres_kit import UNCHANGED, Change, begin, commit, delete, insert, relation, update

from holdfast.errors import JobRefused
from holdfast.sources.postgres import pgoutput
from holdfast.sources.postgres.columns import FACTS, PublishedColumn, TableColumns, arrow_type, fitted, typed
from holdfast.sources.postgres.pgoutput import SEQUENCE, PartialTransaction, Scan

REAL = [
    b'B\x00\x00\x00\x00\x04\x15\x85\x80\x00\x03\x04\x01Q\xd3\xd7"\x00\x00\x02\xd5',
    b"I\x00\x00@\x00N\x00\x04t\x00\x00\x00\x011t\x00\x00\x00\x02v1t\x00\x00\x00\x041.50t\x00\x00\x00\x1d"
    b"2026-11-24 09:44:03.851469+00",
    b'C\x00\x00\x00\x00\x00\x04\x15\x85\x80\x00\x00\x00\x00\x04\x15\x85\xb0\x00\x03\x04\x01Q\xd3\xd7"',
]
REAL_RELATION = (
    b"R\x00\x00@\x00public\x00t\x00f\x00\x04\x01id\x00\x00\x00\x00\x17\xff\xff\xff\xff\x01v\x00\x00\x00\x00\x19\xff\xff"
    b"\xff\xff\x01n\x00\x00\x00\x06\xa4\x00\x0c\x00\x06\x01w\x00\x00\x00\x04\xa0\xff\xff\xff\xff"
)
"""Messages that PostgreSQL 15 sent for an insert."""

INT, STRING = 23, 25
TABLE = TableColumns(
    "public.t",
    (PublishedColumn("id", INT, -1, True), PublishedColumn("v", STRING, -1), PublishedColumn("w", STRING, -1)),
)
RELATION = pgoutput.relation(
    relation(7, "public.t", [("id", INT, -1, True), ("v", STRING, -1, True), ("w", STRING, -1, True)])
)


def test_messages_of_a_real_server_are_decoded():
    found = pgoutput.relation(REAL_RELATION)
    assert (found.name, [(each.name, each.type_oid) for each in found.columns]) == (
        "public.t",
        [("id", 23), ("v", 25), ("n", 1700), ("w", 1184)],
    )
    table = TableColumns(
        found.name, tuple(PublishedColumn(c.name, c.type_oid, c.modifier, c.name == "id") for c in found.columns)
    )
    scan = Scan(REAL, None)
    rows = pgoutput.decode(scan, found, table).rows.to_pylist()
    assert rows == [
        {
            "id": 1,
            "v": "v1",
            "n": Decimal("1.50"),
            "w": datetime(2026, 11, 24, 9, 44, 3, 851469, UTC),
            "_change_type": "insert",
            "_lsn": 0x4158580,
            "_xid": 725,
            "_commit_time": rows[0]["_commit_time"],
            SEQUENCE: 1,
        }
    ]
    assert rows[0]["_commit_time"] > rows[0]["w"]
    assert (scan.end_lsn, scan.commits.tolist(), scan.open) == (0x41585B0, [2], None)


texts = st.one_of(
    st.none(), st.text(st.characters(blacklist_categories=("Cs",), blacklist_characters="\0"), max_size=9)
)
rows = st.tuples(st.integers(-9, 9).map(str), texts, texts).map(list)


@st.composite
def changes(draw):
    kind = draw(st.sampled_from("IUD"))
    old, new = draw(rows), draw(rows)
    if kind == "U":
        new = [new[0], *(UNCHANGED if draw(st.booleans()) else value for value in new[1:])]
    return Change(kind, None if kind == "D" else new, None if kind == "I" else old)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.lists(changes(), max_size=6), max_size=5), st.data())
def test_any_changes_are_decoded_as_a_plain_decoder_does_however_they_are_divided_into_pieces(transactions, data):
    messages, expected = [], []
    for number, transaction in enumerate(transactions):
        messages.append(begin(100 + number, 1000 + number))
        for change in transaction:
            messages.append(change.message(7))
            expected += [(100 + number, 1000 + number, *row) for row in change.rows()]
        messages.append(commit(1000 + number, 1001 + number))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(messages)), max_size=3)))
    found, open_before = [], None
    for first, stop in zip([0, *cuts], [*cuts, len(messages)], strict=True):
        scan = Scan(messages[first:stop], open_before)
        decoded = pgoutput.decode(scan, RELATION, TABLE, first)
        found += decoded.rows.to_pylist()
        open_before = scan.open
    assert [(r["_xid"], r["_lsn"], r["_change_type"], [str(r["id"]), r["v"], r["w"]]) for r in found] == expected
    assert open_before is None
    assert [row[SEQUENCE] for row in found] == sorted(row[SEQUENCE] for row in found)


def test_a_piece_that_ends_inside_a_transaction_tells_its_number_of_changes():
    scan = Scan([begin(5, 50), insert(7, ["1", None, None]), insert(7, ["2", None, None])], None)
    assert scan.open == PartialTransaction(5, 50, 0, 2)
    assert Scan([insert(7, ["3", None, None])], scan.open).open == PartialTransaction(5, 50, 0, 3)
    assert Scan([commit(50, 60)], scan.open).open is None


def test_a_value_that_no_tuple_tells_is_unknown_and_not_null():
    scan = Scan([begin(5, 50), update(7, ["1", UNCHANGED, "x"]), commit(50, 60)], None)
    decoded = pgoutput.decode(scan, RELATION, TABLE)
    assert {name: rows.tolist() for name, rows in decoded.unknown.items()} == {"v": [0]}


def test_a_changed_key_under_the_default_identity_is_a_delete_and_an_insert():
    scan = Scan(
        [
            begin(5, 50),
            update(7, ["2", "a", "b"], ["1", None, None], b"K"),
            delete(7, ["2", None, None], b"K"),
            commit(50, 60),
        ],
        None,
    )
    found = pgoutput.decode(scan, RELATION, TABLE).rows.to_pylist()
    assert [(row["_change_type"], row["id"]) for row in found] == [("delete", 1), ("insert", 2), ("delete", 2)]


def test_a_value_that_a_changed_key_left_as_it_was_is_unknown_where_only_the_old_key_is_told():
    changed = update(7, ["2", UNCHANGED, "x"], ["1", None, None], b"K")
    decoded = pgoutput.decode(Scan([begin(5, 50), changed, commit(50, 60)], None), RELATION, TABLE)
    assert {name: rows.tolist() for name, rows in decoded.unknown.items()} == {"v": [1]}


@pytest.mark.parametrize(
    ("oid", "modifier", "text", "value"),
    [
        (16, -1, "t", True),
        (16, -1, "false", False),
        (17, -1, "\\x00ff", b"\0\xff"),
        (21, -1, "-32768", -32768),
        (20, -1, "9223372036854775807", 2**63 - 1),
        (701, -1, "1.5e-300", 1.5e-300),
        (701, -1, "-Infinity", float("-inf")),
        (1700, (12 << 16) + 4 + 2, "-1234567890.12", Decimal("-1234567890.12")),
        (1700, -1, "1.2345678901234567890", "1.2345678901234567890"),
        (1082, -1, "0099-01-31", date(99, 1, 31)),
        (1114, -1, "2024-02-29 23:59:59.999999", datetime(2024, 2, 29, 23, 59, 59, 999999)),
        (1184, -1, "2024-02-29 23:59:59+00", datetime(2024, 2, 29, 23, 59, 59, 0, UTC)),
        (1186, -1, "1 day 02:03:04", "1 day 02:03:04"),
        (3802, -1, '{"a": 1}', '{"a": 1}'),
    ],
)
def test_types_have_their_arrow_types_and_those_without_are_text(oid, modifier, text, value):
    found = typed("public.t", PublishedColumn("c", oid, modifier), pa.array([text, None]))
    assert found.type == arrow_type(oid, modifier)
    assert found.to_pylist() == [value, None]


def test_a_value_without_a_place_in_arrow_is_refused_with_its_column():
    with pytest.raises(JobRefused, match=r"public.t, column 'c'.*infinity.*text_columns"):
        typed("public.t", PublishedColumn("c", 1114, -1), pa.array(["infinity"]))


STAMP, STAMPTZ = pa.timestamp("us"), pa.timestamp("us", "UTC")
LONG_TEXT = "11111111111111111111"


@pytest.mark.parametrize(
    ("stored", "oid", "modifier", "expected"),
    [
        (pa.array(["\\x6162"]), 17, -1, [b"ab"]),
        (pa.array(["t", "f", None]), 16, -1, [True, False, None]),
        (pa.array([5], pa.int32()), 20, -1, [5]),
        (pa.array([5]), 1700, ((10 << 16) | 2) + 4, [Decimal("5.00")]),
        (pa.array([b"\xff\0", None]), None, -1, ["\\xff00", None]),
        (pa.array([True, False, None]), None, -1, ["t", "f", None]),
        (pa.array([Decimal("0E-10")], pa.decimal128(20, 10)), None, -1, ["0.0000000000"]),
        (pa.array([0, 500_000, 10 * 10**6], STAMP), None, -1, [f"1970-01-01 00:00:{s}" for s in ("00", "00.5", "10")]),
        (pa.array([0, 123_456], STAMPTZ), None, -1, [f"1970-01-01 00:00:00{s}" for s in ("+00", ".123456+00")]),
    ],
)
def test_stored_changes_are_told_in_a_columns_new_type_as_postgres_tells_them(stored, oid, modifier, expected):
    table = TableColumns("public.t", (PublishedColumn("c", oid or STRING, modifier, as_text=oid is None),))
    assert fitted(pa.table({"c": stored, **facts(len(stored))}), table).column("c").to_pylist() == expected


@pytest.mark.parametrize(
    ("stored", "oid", "modifier"),
    [
        (pa.array([0], STAMP), 1184, -1),
        (pa.array([0], STAMPTZ), 1114, -1),
        (pa.array([86_400_000_001], STAMP), 1082, -1),
        (pa.array([1.005]), 1700, ((10 << 16) | 2) + 4),
        (pa.array([1e300]), 700, -1),
        (pa.array([2**40]), 23, -1),
        (pa.array([5]), 16, -1),
        (pa.array([LONG_TEXT]), 1700, ((38 << 16) | 20) + 4),
        (pa.array([1.0]), STRING, -1),
    ],
)
def test_stored_changes_that_a_columns_new_type_may_tell_otherwise_are_refused(stored, oid, modifier):
    table = TableColumns("public.t", (PublishedColumn("c", oid, modifier),))
    with pytest.raises(JobRefused, match=r"column 'c': changes that are stored .* cannot be told exactly"):
        fitted(pa.table({"c": stored, **facts(1)}), table)


def facts(count):
    return {field.name: pa.array([0] * count, pa.int64()).cast(field.type) for field in FACTS}
