"""Errors are found by their short names: each has a section, and wherever a person reads one its name stands first."""

import logging

import pytest
from docs_pages import ROOT

import holdfast as hf
from holdfast.api import __all__ as public
from holdfast.errors import HoldfastError, described
from holdfast.testing import TestSource, start
from holdfast.ui import api

PAGE = (ROOT / "docs" / "reference" / "errors.md").read_text()
ERRORS = [
    name for name in public if isinstance(getattr(hf, name), type) and issubclass(getattr(hf, name), HoldfastError)
]


@pytest.mark.parametrize("name", ERRORS)
def test_each_error_has_a_section_that_its_short_name_finds(name: str) -> None:
    section = PAGE.partition(f"\n## {name}\n")[2].partition("\n## ")[0]
    assert f"::: holdfast.api.{name}" in section
    assert name == "HoldfastError" or "Usual causes\n:" in section


def test_an_error_that_ends_a_query_is_named_in_the_log_the_page_and_the_exception(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def broken(rows: object) -> object:
        raise ValueError("no such carrier")

    job = hf.Job(None, name="named", storage="memory://named-errors")
    rows = job.read(TestSource([[{"k": 1}]], "k BIGINT", name="rows"))
    rows.map_batches(broken, "k BIGINT").write(hf.NoopSink(name="none"))
    with caplog.at_level(logging.INFO):
        query = start(job, hf.available_now())
        with pytest.raises(hf.QueryFailed, match=r"ended: UserFunctionError: .*no such carrier"):
            query.awaitTermination()
    assert any("named: ended: UserFunctionError: " in line for line in caplog.messages)
    shown = api.job(query.view())["error"]
    assert shown is not None and shown.startswith("UserFunctionError: ")


def test_the_root_of_all_errors_which_would_say_nothing_does_not_stand_before_a_message() -> None:
    assert described(HoldfastError("the page said no")) == "the page said no"
    assert described(hf.JobRefused("no slots")) == "JobRefused: no slots"
