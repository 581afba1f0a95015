"""Sources that are code of users refuse cuts by an optional method, which is given the offsets of the cut."""

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.availability import Refusal, SnapshotAvailability, refusal
from holdfast.sources.base import Enumerator
from holdfast.sources.dataframe import DataFrameEnumerator
from holdfast.sources.pyspark_reader import ReaderEnumerator

Answer = Callable[[dict[str, Any]], Any]


class Reader:
    """A reader of a single split, without an answer."""

    def latestOffset(self) -> dict[str, int]:
        return {"split": 9}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[object]:
        return []


class Refusing(Reader):
    def __init__(self, answer: Answer) -> None:
        self.is_snapshot_available = answer


def reader(answer: Answer | None) -> Enumerator:
    return ReaderEnumerator("rows", Reader() if answer is None else Refusing(answer), {"split": 0})


def dataframe(answer: Answer | None) -> Enumerator:
    return DataFrameEnumerator("rows", {"split": 0}, lambda: {"split": 9}, answer)


def refused(found: Enumerator, start: int, until: int) -> Refusal | None:
    return refusal("source 'rows'", found.plan({"split": start}, {"split": until}, 100, 100).availability)


def inside_a_transaction(end: dict[str, Any]) -> SnapshotAvailability:
    if end["split"] % 2:
        return SnapshotAvailability.SOFT_FAILURE.because("inside transaction 4")
    return SnapshotAvailability.AVAILABLE


@pytest.mark.parametrize("made", [reader, dataframe])
def test_a_source_is_asked_with_the_offsets_of_each_end_also_where_no_rows_are_new(made: Any) -> None:
    found = made(inside_a_transaction)
    soft = Refusal("source 'rows'", "inside transaction 4", hard=False)
    assert [refused(found, 0, 7), refused(found, 7, 7)] == [soft, soft]
    assert [refused(found, 7, 8), refused(found, 8, 8), refused(made(None), 0, 7)] == [None, None, None]


@pytest.mark.parametrize("made", [reader, dataframe])
def test_an_error_and_an_answer_of_another_type_are_hard_refusals(made: Any) -> None:
    def fails(end: dict[str, Any]) -> SnapshotAvailability:
        raise KeyError("no such transaction")

    failed, odd = refused(made(fails), 0, 1), refused(made(lambda end: True), 0, 1)
    assert failed is not None and failed.hard and "raised KeyError" in failed.reason
    assert odd is not None and odd.hard and "is True; expected" in odd.reason
