"""The undo of a failed call: steps from the newest back to a mark, and none where no call is ever undone."""

from holdfast.functions.undo_log import UndoLog


def changed(log: UndoLog, values: dict[str, int], name: str, value: int) -> None:
    before = values[name]
    log.note(lambda: values.update({name: before}))
    values[name] = value


def test_a_failed_call_goes_back_to_its_mark_the_newest_change_first() -> None:
    log, values = UndoLog(is_kept=True), {"a": 0, "b": 0}
    changed(log, values, "a", 1)
    mark = log.mark()
    changed(log, values, "a", 2)
    changed(log, values, "b", 3)
    changed(log, values, "a", 4)
    log.back_to(mark)
    assert values == {"a": 1, "b": 0}
    log.back_to(0)
    assert values == {"a": 0, "b": 0}


def test_changes_of_calls_that_ended_well_are_not_undone_any_more() -> None:
    log, values = UndoLog(is_kept=True), {"a": 0}
    changed(log, values, "a", 1)
    log.clear()
    assert log.mark() == 0
    log.back_to(0)
    assert values == {"a": 1}


def test_nothing_is_noted_where_no_call_is_ever_undone() -> None:
    log, values = UndoLog(is_kept=False), {"a": 0}
    changed(log, values, "a", 1)
    log.back_to(log.mark())
    assert values == {"a": 1}
