"""A running job in a terminal and in a notebook."""

import io
import itertools
import json
import subprocess
import sys
from collections.abc import Iterator

import msgspec
import pyarrow.compute as pc
import pytest
from rich.console import Console

import holdfast as hf
from holdfast.errors import HoldfastError
from holdfast.query import Query
from holdfast.testing import TestSource, start
from holdfast.ui.screen import documents, fetched, screen

_numbers = itertools.count()
ROWS = [{"k": key} for key in range(1500)]


@pytest.fixture
def job() -> hf.Job:
    made = hf.Job(None, name="<shown>", storage=f"memory://screen-{next(_numbers)}", ui_port=0)
    rows = made.read(TestSource([ROWS], "k BIGINT", name="rows"))
    rows.key_by("k").aggregate(n=hf.count(), name="counts").write(hf.MemorySink(name="out"))
    return made


@pytest.fixture
def query(job: hf.Job) -> Iterator[Query]:
    made = start(job, hf.processing_time("0s"))
    made.processAllAvailable()
    yield made
    made.stop()


def drawn(query: Query) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(screen(*documents(query.view())))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_a_screen_has_nodes_rates_state_and_checkpoints(query: Query) -> None:
    shown = drawn(query)
    assert "1,500 rows" in shown and "counts" in shown and "Processing" in shown
    assert f"checkpoints: {query.totals.completed_checkpoints} completed, 0 failed" in shown


def test_the_page_gives_another_process_the_same_documents(query: Query) -> None:
    assert query.uiUrl is not None
    job, checkpoints = fetched(query.uiUrl)
    own_job, own_checkpoints = documents(query.view())
    assert job["rows"] == own_job["rows"] == 1500
    assert checkpoints["history"] == json.loads(msgspec.json.encode(own_checkpoints["history"]))


def test_show_ends_with_the_query(query: Query) -> None:
    query.stop()
    console = Console(file=io.StringIO(), width=160)
    query.show(console)
    assert isinstance(console.file, io.StringIO)
    assert "Stopped" in console.file.getvalue()


def test_an_address_without_a_page_is_named_with_the_remedy() -> None:
    with pytest.raises(HoldfastError, match=r"http://127.0.0.1:1: no page of a running job answers.*query.uiUrl"):
        fetched("http://127.0.0.1:1")
    top = subprocess.run(
        [sys.executable, "-m", "holdfast.cli", "top", "http://127.0.0.1:1"], capture_output=True, text=True
    )
    assert top.returncode == 1 and "no page of a running job answers" in top.stderr and "Traceback" not in top.stderr


def test_notebooks_show_jobs_queries_and_checkpoints_as_tables(job: hf.Job, query: Query) -> None:
    assert "<td>source</td><td>rows</td>" in job._repr_html_()
    stream = job.read(hf.SequenceSource(10, name="more")).where(pc.field("value") > 3)
    assert "<td>more</td><td>where(" in stream._repr_html_()
    assert "&lt;shown&gt;" in job._repr_html_() and "<shown>" not in job._repr_html_()
    assert "<td>rows</td><td>1,500</td>" in query._repr_html_()
    checkpoints = query.checkpoints
    assert checkpoints._repr_html_().count("<tr>") == len(checkpoints) + 1
    assert "completed" in repr(checkpoints) and repr(checkpoints).startswith("id")
