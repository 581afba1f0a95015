"""The body of a `map_async` step: makes calls of rows, and rows of answers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pyarrow as pa

from holdfast.calls.caller import Caller, FailedCall
from holdfast.calls.declared import AsyncCalls, CallPlace
from holdfast.errors import UserFunctionError
from holdfast.functions.process.shared.output import OutputMismatch, Row, RowFitter, fit_batches
from holdfast.functions.rows.calls import named_tuples
from holdfast.python_values import python_values, unrepresentable

RefuseRows = Callable[[pa.RecordBatch, Mapping[int, str], bool], None]


def answered(calls: AsyncCalls, rows: pa.RecordBatch, place: CallPlace, refuse: RefuseRows) -> Iterator[pa.RecordBatch]:
    """Yield the rows that a function answers with. Rows whose call fails for good are refused.

    Raises as `Caller.answers` does, and `UserFunctionError` for an answer that is no row.
    """
    size = calls.settings.batch
    odd = unrepresentable(rows) if size is None else {}
    if odd:
        refuse(rows, {row: f"{calls}: {reason}" for row, reason in odd.items()}, False)
        rows = rows.take([row for row in range(rows.num_rows) if row not in odd])
    caller = calls.opened(lambda: Caller(str(calls), calls.function, calls.settings, place.clock))
    items = _items(rows, size)
    answers = caller.kept.of(rows, len(items), place.batch, place.run, FailedCall)
    for done in caller.answers(items, answers, place):
        failed = {number: answers[number].reason for number in done if isinstance(answers[number], FailedCall)}
        if failed:
            reasons = {row: f"{calls} failed: {why}" for number, why in failed.items() for row in _rows(number, size)}
            refuse(rows, {row: reason for row, reason in sorted(reasons.items()) if row < rows.num_rows}, False)
        good = [number for number in done if number not in failed]
        made = _of_rows if size is None else _of_batches
        yield from made(calls, rows, good, [answers[number] for number in good], refuse)


def _items(rows: pa.RecordBatch, size: int | None) -> list[Any]:
    """Return an item for each call: a named tuple for each row, or record batches of at most `size` rows."""
    if size is not None:
        return [rows.slice(start, size) for start in range(0, rows.num_rows, size)]
    row_of = named_tuples("Row", rows.schema.names)
    columns = [python_values(column) for column in rows.columns]
    return [row_of(values) for values in zip(*columns, strict=True)]


def _of_batches(
    calls: AsyncCalls, rows: pa.RecordBatch, numbers: list[int], answers: list[Any], refuse: RefuseRows
) -> Iterator[pa.RecordBatch]:
    for answer in answers:
        try:
            yield from fit_batches(answer, calls.schema)
        except OutputMismatch as error:
            raise UserFunctionError(f"{calls}: {error}") from None


def _of_rows(
    calls: AsyncCalls, rows: pa.RecordBatch, numbers: list[int], answers: list[Any], refuse: RefuseRows
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of answers; `numbers`: the row that each answers. Rows whose answer does not fit are refused."""
    fitter = RowFitter(calls.schema)
    shaped: list[Row] = []
    owners: list[int] = []
    wrong: dict[int, str] = {}
    for number, answer in zip(numbers, answers, strict=True):
        try:
            found = [fitter.shape(each) for each in _rows_of(answer)]
        except OutputMismatch as error:
            wrong[number] = f"{calls}: {error}"
            continue
        shaped += found
        owners += [number] * len(found)
    yield from _fitted(fitter, shaped, owners, wrong, str(calls))
    if wrong:
        refuse(rows, dict(sorted(wrong.items())), False)


def _fitted(
    fitter: RowFitter, shaped: list[Row], owners: list[int], wrong: dict[int, str], shown: str
) -> Iterator[pa.RecordBatch]:
    """Yield the rows as a batch. Rows with a value that does not fit are left out, and noted as `wrong`."""
    if not shaped:
        return
    try:
        yield fitter.batch(shaped)
        return
    except OutputMismatch:
        pass  # each row is checked singly below, which finds all rows that do not fit
    fitting: list[tuple[int, Row]] = []
    for owner, row in zip(owners, shaped, strict=True):
        try:
            fitting.append((owner, fitter.fitted(row)))
        except OutputMismatch as error:
            wrong.setdefault(owner, f"{shown}: {error}")
    kept = [row for owner, row in fitting if owner not in wrong]
    if kept:
        yield fitter.batch(kept)


def _rows_of(answer: Any) -> list[Any]:
    if answer is None:
        return []
    return answer if isinstance(answer, list) else [answer]


def _rows(number: int, size: int | None) -> range:
    """Return the numbers of the rows that a call was made for; the last call's may end sooner."""
    return range(number * (size or 1), (number + 1) * (size or 1))
