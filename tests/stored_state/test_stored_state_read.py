"""State read from a checkpoint, without the job, follows from the job's input."""

import json
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.errors import HoldfastError, StorageError
from holdfast.packed_values import pack
from holdfast.state.widening import packed_field
from holdfast.stored_state import opened
from holdfast.stored_state.opened import open_checkpoint, open_storage
from holdfast.stored_state.rows import scan
from holdfast.stored_state.states import _shown_column
from stored_state_kit import DUE, rows_from, run_job

ROWS = rows_from(0, 30)


@pytest.fixture(scope="module", params=[None, hf.RocksDBState(cache_max_entries=2)], ids=["memory", "rocksdb"])
def storage(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    return run_job(tmp_path_factory.mktemp("stored"), ROWS[:20], ROWS[20:], state=request.param)


def read(storage: str, operator: str = "everything", state: str | None = None, **settings: Any) -> list[dict[str, Any]]:
    return hf.read_state(storage, operator, state, **settings).to_pylist()


def test_values_and_accumulators_are_columns(storage: str) -> None:
    values = {row["k"]: row for row in read(storage)}
    assert {key: row["n"] for key, row in values.items()} == {0: 10, 1: 10, 2: 10}
    assert {key: json.loads(row["anything"]) for key, row in values.items()} == {
        key: {"newest": 27 + key} for key in range(3)
    }
    counts = read(storage, "counts")
    assert sorted((row["k"], row["n.count"], row["worst.max"]) for row in counts) == [
        (0, 10, 27),
        (1, 10, 28),
        (2, 10, 29),
    ]


def test_maps_lists_and_timers_are_rows_of_their_own(storage: str) -> None:
    entries = {(row["k"], row["map_key"]): row["value"] for row in read(storage, state="seen")}
    assert entries == {(row["k"], str(row["v"])): row["v"] for row in ROWS}
    elements = sorted((row["k"], row["position"], row["value"]) for row in read(storage, state="last"))
    assert elements == [(key, place, key + 3 * place) for key in range(3) for place in range(10)]
    timers = read(storage, state="timers")
    assert sorted((row["k"], row["kind"], row["timestamp"]) for row in timers) == [
        (key, "processing_time", DUE) for key in range(3)
    ]


def test_a_key_is_read_alone(storage: str) -> None:
    assert {row["value"] for row in read(storage, state="seen", key={"k": 1})} == {
        row["v"] for row in ROWS if row["k"] == 1
    }
    assert read(storage, state="seen", key={"k": 77}) == []


def test_key_groups_of_all_states_of_a_key_agree(storage: str) -> None:
    groups = {row["k"]: row["key_group"] for row in read(storage)}
    assert all(
        groups[row["k"]] == row["key_group"]
        for state in ("seen", "last", "timers")
        for row in read(storage, state=state)
    )


@pytest.mark.parametrize(
    ("operator", "settings", "message"),
    [
        ("nobody", {}, "there is no operator 'nobody'; there are 'counts', 'everything'"),
        ("everything", {"state": "other"}, "has no state 'other'; it has 'last', 'seen', 'values', 'timers'"),
        ("everything", {"checkpoint": 99}, "there is no checkpoint 99; the storage retains"),
        ("everything", {"key": {"k": "x"}}, "is none of its keys"),
        ("everything", {"key": {"user": 1}}, "has the key columns k; the key names user"),
    ],
)
def test_what_is_not_there_is_named_with_what_is(storage: str, operator: str, settings: Any, message: str) -> None:
    with pytest.raises(HoldfastError, match=message):
        hf.read_state(storage, operator, **settings)


def test_a_folder_without_a_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises((HoldfastError, StorageError), match="not the storage of a job"):
        hf.read_state(tmp_path.as_uri(), "counts")


def test_a_checkpoint_that_the_job_lets_go_of_meanwhile_is_named(tmp_path: Path) -> None:
    storage = run_job(tmp_path, ROWS[:10])
    store = open_storage(storage)
    found = scan(open_checkpoint(store), "counts")
    run_job(tmp_path, ROWS[:10], ROWS[10:])
    store.delete([name for handle in found.handles for name in handle.objects()])
    assert found.number not in opened.retained(store)
    why = f"let go of checkpoint {found.number} while it was read.*cannot pin.*retained=.*savepoint"
    with pytest.raises(HoldfastError, match=why):
        found.read(found.ranges()[0], store)


@pytest.mark.parametrize(
    ("kept", "shown"),
    [
        (datetime(2026, 1, 2, 3), '"2026-01-02T03:00:00"'),
        ({"days": [date(2026, 1, 2)]}, '{"days":["2026-01-02"]}'),
        ({None: 1, True: float("nan")}, '{"null":1,"true":"NaN"}'),
        (b"\xff", '"/w=="'),
    ],
    ids=repr,
)
def test_any_object_of_a_state_without_a_type_is_shown_as_json(kept: Any, shown: str) -> None:
    stored = pa.schema([("k", pa.int64()), packed_field("value")])
    rows = pa.record_batch([pa.array([1]), pa.array([pack(kept)])], schema=stored)
    assert _shown_column(rows.column(1), stored.field(1), "value").to_pylist() == [shown]
