"""Expressions that fail for a row, in a job with dead letters: the row is a letter with its place, the others go on."""

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

import holdfast as hf
from holdfast.arrays import plain_schema
from holdfast.errors import QueryFailed
from holdfast.graph.build import build_program, without_spark
from holdfast.testing import Eof, TestSource, run

ROWS = [{"a": 1, "s": "7"}, {"a": 2**63 - 1, "s": "8"}, {"a": 3, "s": "x"}, {"a": 4, "s": "9"}, {"a": 5, "s": "y"}]


def job_of(letters: Path | None) -> hf.Job:
    kept = {} if letters is None else {"bad_records": "dead_letter", "dead_letters": letters.as_uri()}
    return hf.Job(None, name="expressions", storage=f"memory://{uuid.uuid4()}", **kept)


def letters_in(folder: Path) -> list[dict[str, Any]]:
    return [row for file in sorted(folder.rglob("part-*.parquet")) for row in pq.read_table(file).to_pylist()]


def test_letters_name_the_row_its_place_and_the_expression(tmp_path: Path) -> None:
    job, sink = job_of(tmp_path), hf.MemorySink()
    read = job.read(TestSource([ROWS, Eof()], "a BIGINT, s STRING", name="in"))
    read.select("s", a=pc.field("a") + 1).select("a", n=pc.field("s").cast("int64")).write(sink)
    run(job)
    assert [(row["a"], row["n"]) for row in sink.rows()] == [(2, 7), (5, 9)]
    letters = letters_in(tmp_path)
    assert [letter["payload"] for letter in letters] == [
        '{"a":9223372036854775807,"s":"8"}',
        '{"s":"x","a":4}',
        '{"s":"y","a":6}',
    ]
    # Behind a step that refused a row, the others no longer have their own positions.
    assert [letter["position"] for letter in letters] == ["1", "from 0", "from 0"]
    assert all(letter["source"] == "in" for letter in letters)
    assert "a=add_checked(a, 1): overflow" in letters[0]["reason"]


def test_conditions_of_aggregates_and_behind_an_operator_make_letters_too(tmp_path: Path) -> None:
    job, sink = job_of(tmp_path), hf.MemorySink()
    read = job.read(TestSource([ROWS, Eof()], "a BIGINT, s STRING", name="in"))
    counted = read.key_by("s").aggregate(n=hf.count(where=pc.field("a") + 1 > 0), a=hf.sum("a"), name="counted")
    counted.where(pc.field("s").cast("int64") > 0).write(sink)
    run(job)
    assert sorted(row["s"] for row in sink.rows()) == ["7", "9"]
    letters = sorted(letters_in(tmp_path), key=lambda letter: letter["payload"])
    assert [letter["payload"] for letter in letters] == [
        '{"a":9223372036854775807,"s":"8"}',
        '{"s":"x","n":1,"a":3}',
        '{"s":"y","n":1,"a":5}',
    ]


def test_without_dead_letters_the_query_ends_with_row_and_expression() -> None:
    job = job_of(None)
    read = job.read(TestSource([ROWS, Eof()], "a BIGINT, s STRING", name="in"))
    read.where(pc.field("a") + 1 > 0).write(hf.MemorySink())
    with pytest.raises(QueryFailed, match=r"source 'in'.*position 1: where\(.*overflow; the row is"):
        run(job)


@pytest.mark.parametrize("state", [hf.HashMapState(), hf.RocksDBState()], ids=["hashmap", "rocksdb"])
def test_other_layouts_of_a_source_and_of_a_function_reach_state_in_the_plain_layout(state: Any) -> None:
    batch = pa.record_batch(
        {
            "id": [0, 1],
            "t": pa.array([0, 1], pa.int64()).cast(pa.timestamp("us", "UTC")),
            "d": pa.array(["a", None]).dictionary_encode(),
            "l": pa.array([["x"], None], pa.list_view(pa.string_view())),
        }
    )
    sink = hf.MemorySink()
    job = hf.Job(None, name="layouts", storage=f"memory://{uuid.uuid4()}", state=state)
    read = job.read(TestSource([batch, Eof()], batch.schema, name="in"))
    encoded = read.map_batches(lambda rows: rows.set_column(2, "d", rows.column(2).dictionary_encode()), batch.schema)
    encoded.key_by("id").last(by="t", name="last").write(sink)
    run(job)
    assert sink.table().schema.field("d").type == pa.string()
    assert sorted((row["id"], row["d"], row["l"]) for row in sink.rows()) == [(0, "a", ["x"]), (1, None, None)]


class Encodes(hf.ProcessFunction):
    """Keeps a text, and gives it twice."""

    kept = hf.ValueState(pa.string())

    def process(self, row: Any, ctx: Any) -> Iterator[Any]:
        self.kept.update(row.d)
        yield row.d, self.kept.value()


class EncodesBatches(hf.BatchFunction):
    """Gives texts in other layouts."""

    kept = hf.ValueState(pa.string())

    def process(self, batch: pa.RecordBatch, keys: pa.RecordBatch, groups: Any, ctx: Any) -> Iterator[pa.RecordBatch]:
        texts = batch.column("d")
        self.kept.update(pa.array(["x"] * keys.num_rows))
        columns = [batch.column("id"), texts.cast(pa.string_view()), texts.dictionary_encode()]
        yield pa.record_batch(columns, names=["id", "v", "d"])


def every_operator(read: hf.Stream) -> dict[str, hf.Stream]:
    """Streams behind operators with state, over columns in other layouts, made by a source and by expressions."""
    cast = {"v": pc.field("d").cast(pa.string_view()), "c": pc.field("d").cast(pa.dictionary(pa.int32(), pa.string()))}
    rows = read.with_watermark("t", "0s").select("id", "t", "d", "l", **cast)
    keyed, schema = rows.key_by("id"), pa.schema([("id", pa.int64()), ("v", pa.string()), ("d", pa.string())])
    return {
        "last": keyed.last(by="t"),
        "top": keyed.top(2, by="t"),
        "changing": keyed.top(2, by="t", changes=True),
        "windowed": rows.key_by("id", hf.window("t", "1s")).top(1, by="t"),
        "joined": keyed.join(rows.select("id", "v").key_by("id"), suffix="_right"),
        "within": keyed.join(rows.select("id", "v", "t").key_by("id"), within=("-1s", "1s"), suffix="_right"),
        "as of": keyed.join(rows.select("id", "v", "t").key_by("id"), how="asof", suffix="_right"),
        "over": keyed.over(by="t", rows=2, n=hf.count("v")),
        "first": keyed.aggregate(first=hf.first("v"), least=hf.min("c")),
        "by v": rows.key_by("v").aggregate(n=hf.count()),
        "once": rows.drop_duplicates("v", "c", within="1h"),
        "function": keyed.process(Encodes(), "d STRING, v STRING"),
        "batches": keyed.process(EncodesBatches(), schema).key_by("id").last(by="v"),
    }


def test_no_way_leads_a_dictionary_or_a_view_into_state() -> None:
    batch = pa.record_batch(
        {
            "id": [0, 1, 0],
            "t": pa.array([0, 1, 10**7]).cast(pa.timestamp("us", "UTC")),
            "d": pa.array(["a", "", "b" * 20]).dictionary_encode(),
            "l": pa.array([["x"], None, []], pa.list_view(pa.string_view())),
        }
    )
    job = hf.Job(None, name="layouts", storage=f"memory://{uuid.uuid4()}")
    read, sinks = job.read(TestSource([batch, batch, Eof()], batch.schema, name="in")), dict[str, hf.MemorySink]()
    for name, made in every_operator(read).items():
        made.write(sinks.setdefault(name, hf.MemorySink()))
    program = build_program(job.declared, without_spark, None)
    tables = [table for each in program.operators.values() for table in each.table_schemas().values()]
    assert len(tables) > len(sinks)
    for keys, values in tables:
        assert plain_schema(keys).equals(keys)
        assert plain_schema(values).equals(values)
    run(job)
    assert {name for name, sink in sinks.items() if not sink.rows()} == set()
    assert {row["v"] for row in sinks["last"].rows() if row["id"] == 0} == {"b" * 20}


def test_a_row_that_two_operators_refuse_is_a_single_letter_that_names_both(tmp_path: Path) -> None:
    job, sink = job_of(tmp_path), hf.MemorySink()
    rows = [{"a": None, "s": "x"}, {"a": 1, "s": "y"}, {"a": None, "s": "x"}]
    read = job.read(TestSource([rows, Eof()], "a BIGINT, s STRING", name="in"))
    read.key_by("a").aggregate(n=hf.count(), name="one").write(sink)
    read.key_by("a", "s").aggregate(n=hf.count(), name="two").write(hf.MemorySink())
    query = run(job)
    letters = letters_in(tmp_path)
    assert [(letter["position"], letter["operator"]) for letter in letters] == [("0", "one, two"), ("2", "one, two")]
    assert all("operator 'one'; null" in letter["reason"] for letter in letters)
    assert query.totals.bad_rows == 2
