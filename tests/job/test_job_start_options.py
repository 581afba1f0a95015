"""Options of a single start, columns whose names are parameters, and durations."""

from typing import Any

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.testing import TestSource, run, start


def counted(storage: str, **settings: Any) -> tuple[hf.Job, hf.MemorySink]:
    job, sink = hf.Job(None, name="counted", storage=storage, **settings), hf.MemorySink(name="out")
    stream = job.read(TestSource([[{"k": 1}], [{"k": 1}]], "k BIGINT", name="rows"))
    stream.key_by("k").aggregate(n=hf.count(), name="counts").write(sink)
    return job, sink


def test_options_of_a_start_hold_for_it_alone() -> None:
    job, sink = counted("memory://options-once", initial_state={"counts": pa.table({"k": [1], "n.count": [40]})})
    run(job)
    assert [row["n"] for row in sink.rows()] == [41, 42]
    with pytest.raises(hf.JobRefused, match="no source, operator or sink 'cuonts'"):
        run(job, drop_state=["cuonts"])
    assert job.start_options.drop_state == ()
    run(job)


def test_a_job_begins_from_rows_that_its_start_names() -> None:
    job, sink = counted("memory://options-state")
    run(job, initial_state={"counts": pa.table({"k": [1], "n.count": [9]})})
    assert [row["n"] for row in sink.rows()] == [10, 11]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"ui_port": 70000}, "ui_port=70000"),
        ({"restore_mode": "claim"}, "restore_mode needs start_from"),
        ({"start_form": 3}, "'start_form' is no setting of a job and no option of a start; .*start_from"),
        ({"initial_state": {"counts": [1]}}, "initial_state of operator 'counts' is a list"),
    ],
)
def test_an_option_that_is_not_allowed_is_refused_at_a_start_and_in_a_job(wrong: dict[str, Any], message: str) -> None:
    job, _ = counted("memory://options-wrong")
    with pytest.raises(hf.SettingsError, match=message):
        run(job, **wrong)
    with pytest.raises(hf.SettingsError, match=message):
        counted("memory://options-wrong", **wrong)


def test_columns_may_have_the_names_of_parameters() -> None:
    job, sink = hf.Job(None, name="named", storage="memory://options-names"), hf.MemorySink()
    keyed = job.read(TestSource([[{"k": 1, "v": 5}]], "k BIGINT, v BIGINT")).key_by("k")
    keyed.aggregate({"name": hf.count(), "emit": hf.sum("v")}, late_ones=hf.max("v"), name="totals").write(sink)
    run(job)
    assert sink.rows() == [{"k": 1, "name": 1, "emit": 5, "late_ones": 5}]


@pytest.mark.parametrize("name", ["name", "emit", "late", "allowed_lateness"])
def test_a_column_in_the_place_of_a_parameter_is_refused_with_the_form_that_works(name: str) -> None:
    job = hf.Job(None, name="named", storage="memory://options-wrong-names")
    keyed = job.read(TestSource([[{"k": 1}]], "k BIGINT")).key_by("k")
    wrong: dict[str, Any] = {name: hf.count()}
    with pytest.raises(hf.SettingsError, match=rf'{name}= is a parameter .* aggregate\({{"{name}": hf.count'):
        keyed.aggregate(**wrong)
    with pytest.raises(hf.SettingsError, match="given twice"):
        keyed.aggregate({"n": hf.count()}, n=hf.count())


def test_a_checkpoint_is_waited_for_by_a_duration() -> None:
    job, _ = counted("memory://options-wait")
    query = start(job, hf.processing_time("0s"))
    query.processAllAvailable()
    assert query.trigger_checkpoint(timeout="1min") == query.trigger_checkpoint(60)
    with pytest.raises(hf.SettingsError, match="timeout"):
        query.trigger_checkpoint(timeout="soon")
    query.stop()
