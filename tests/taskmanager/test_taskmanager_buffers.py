import pyarrow as pa
import pytest

from holdfast.errors import HoldfastError, StaleCall, StorageError
from holdfast.functions.operator import COMBINED_INPUT
from holdfast.protocol.streams import SentStream, Streams
from holdfast.protocol.taskmanager import ExchangeTag, ProcessRequest
from holdfast.taskmanager.buffers import RowBuffer, SpillArea
from holdfast.taskmanager.digest import Section, fold, of_sections
from holdfast.taskmanager.inputs import Inputs
from holdfast.taskmanager.outputs import Outputs


def rows(start: int, count: int = 100) -> pa.RecordBatch:
    return pa.record_batch({"n": pa.array(range(start, start + count), pa.int64())})


def tag(attempt: str, unit: int = 0, run: int = 1, batch: int = 5) -> ExchangeTag:
    return ExchangeTag("job", run, batch, 1, 0, unit, attempt)


def section(batches: list[pa.RecordBatch], subtask: int = 0, number: int = 0) -> dict[Section, tuple[int, int]]:
    digest = 0
    for batch in batches:
        digest = fold(digest, batch)
    return {("op", number, subtask): (sum(batch.num_rows for batch in batches), digest)}


def claim(attempt: str, batches: list[pa.RecordBatch], unit: int = 0, subtask: int = 0, number: int = 0) -> SentStream:
    return SentStream(unit, attempt, *of_sections(section(batches, subtask, number)))


def request(*streams: SentStream, run: int = 1, batch: int = 5) -> ProcessRequest:
    return ProcessRequest(run, batch, 0, 1, Streams.of(streams))


def test_rows_past_the_memory_bound_go_to_local_files_and_come_back_in_order(tmp_path):
    area = SpillArea(2000, str(tmp_path))
    kept = RowBuffer(area)
    batches = [rows(start) for start in range(0, 1000, 100)]
    for batch in batches:
        kept.append(batch)
    assert area.memory_bytes == 1600
    assert area.spilled_bytes == 8 * 800
    assert list(kept.batches()) == batches
    assert list(kept.batches()) == batches


def test_dropping_gives_memory_back_and_deletes_the_file(tmp_path):
    area = SpillArea(1000, str(tmp_path))
    kept = RowBuffer(area)
    for start in (0, 100, 200):
        kept.append(rows(start))
    reading = kept.batches()
    first = next(reading)
    kept.drop()
    assert area.memory_bytes == 0
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert [first, *reading] == [rows(0), rows(100), rows(200)]


def test_closing_the_area_removes_its_folder(tmp_path):
    area = SpillArea(0, str(tmp_path))
    RowBuffer(area).append(rows(0))
    area.close()
    assert list(tmp_path.iterdir()) == []


def test_a_local_disk_that_takes_nothing_is_named(tmp_path):
    area = SpillArea(0, str(tmp_path))
    kept = RowBuffer(area)
    kept.append(rows(0))
    other = pa.record_batch({"m": ["not the schema of the file"]})
    with pytest.raises(StorageError, match="local_dir"):
        kept.append(other)


def test_only_the_named_attempt_of_a_unit_counts_and_units_come_in_the_order_named(tmp_path):
    inputs = Inputs(SpillArea(10**6, str(tmp_path)))
    inputs.attempt(tag("failed", unit=0)).append(("op", 0, 0), rows(0, 40))
    inputs.attempt(tag("good", unit=0)).append(("op", 0, 0), rows(0))
    inputs.attempt(tag("next", unit=1)).append(("op", 0, 0), rows(100))
    taken = inputs.take(request(claim("next", [rows(100)], unit=1), claim("good", [rows(0)])))
    assert taken == {("op", 0): [(0, rows(100)), (0, rows(0))]}


def test_combined_rows_of_a_unit_come_right_before_its_other_rows(tmp_path):
    inputs = Inputs(SpillArea(10**6, str(tmp_path)))
    inputs.attempt(tag("a", unit=0)).append(("op", 0, 1), rows(0))
    inputs.attempt(tag("a", unit=0)).append(("op", COMBINED_INPUT, 1), rows(10))
    inputs.attempt(tag("b", unit=1)).append(("op", COMBINED_INPUT, 1), rows(20))
    both = section([rows(10)], 1, COMBINED_INPUT) | section([rows(0)], 1)
    claims = [SentStream(0, "a", *of_sections(both))]
    claims.append(claim("b", [rows(20)], unit=1, subtask=1, number=COMBINED_INPUT))
    taken = inputs.take(request(*claims))
    assert taken == {("op", 1): [(COMBINED_INPUT, rows(10)), (0, rows(0)), (COMBINED_INPUT, rows(20))]}


@pytest.mark.parametrize(
    "claimed",
    [
        claim("a", [rows(0), rows(100)]),
        claim("a", [rows(1)]),
        claim("a", [rows(0)], subtask=1),
        claim("unknown", [rows(0)]),
        SentStream(0, "a", 0, 0),
    ],
    ids=["more rows", "other rows", "another subtask", "an attempt that never came", "nothing"],
)
def test_a_claim_that_differs_from_what_arrived_is_refused_with_both_named(claimed, tmp_path):
    inputs = Inputs(SpillArea(10**6, str(tmp_path)))
    inputs.attempt(tag("a")).append(("op", 0, 0), rows(0))
    with pytest.raises(HoldfastError, match=r"batch 5: attempt .* claims .* arrived"):
        inputs.take(request(claimed))


def test_released_batches_give_all_memory_back_named_or_not(tmp_path):
    area = SpillArea(10**6, str(tmp_path))
    inputs = Inputs(area)
    inputs.attempt(tag("a", batch=5)).append(("op", 0, 0), rows(0))
    inputs.attempt(tag("b", batch=5)).append(("op", 0, 0), rows(0))
    inputs.attempt(tag("c", batch=6)).append(("op", 0, 0), rows(0))
    inputs.release(5)
    assert area.memory_bytes == 800
    inputs.release_runs_before(2)
    assert (area.memory_bytes, len(inputs)) == (0, 0)


def test_rows_that_come_after_their_attempt_was_dropped_are_refused(tmp_path):
    area = SpillArea(10**6, str(tmp_path))
    inputs = Inputs(area)
    attempt = inputs.attempt(tag("a"))
    attempt.append(("op", 0, 0), rows(0))
    inputs.release(5)
    with pytest.raises(StaleCall):
        attempt.append(("op", 0, 0), rows(100))
    assert area.memory_bytes == 0


def test_output_can_be_read_again_until_it_is_released_and_asking_later_is_an_error(tmp_path):
    outputs = Outputs(SpillArea(10**6, str(tmp_path)))
    assert outputs.put(5, "op", 0, [rows(0), rows(0, 0), rows(100)]) == 200
    assert outputs.read(5, "op", 0) == outputs.read(5, "op", 0) == [rows(0), rows(100)]
    outputs.release(5)
    with pytest.raises(StaleCall, match="batch 5 is not held"):
        outputs.read(5, "op", 0)


def test_an_empty_output_is_not_an_error(tmp_path):
    outputs = Outputs(SpillArea(10**6, str(tmp_path)))
    outputs.put(5, "op", 0, [])
    assert outputs.read(5, "op", 0) == []
