"""A base that a follower has made: a table takes it if its log goes on from there, and then names it."""

import pytest

from holdfast.formats.handles import MadeBase, TableHandle
from holdfast.formats.log_objects import LogId
from holdfast.materialize.materializer import Materializer
from holdfast.materialize.policy import PATIENT
from holdfast.recovery.downloads import ObjectCache
from holdfast.recovery.restore import restore_table
from holdfast.state.table import StateTable
from holdfast.uploads.uploader import Uploader
from logged_kit import KEYS, VALUES, Subtask, make
from waiting import until


def made(subtask: Subtask, handle: TableHandle, batch: int, uploader: Uploader | None = None) -> MadeBase:
    """The base of a follower that holds the table of this checkpoint."""
    table = StateTable(KEYS, VALUES, 16)
    with ObjectCache(subtask.inner) as cache:
        restore_table(table, [handle], cache, 0, 16)
    log = LogId("count", "state", 0, 16)
    store = Materializer(log, table, handle.schema, uploader or subtask.uploader, dict)
    base = store.start(0, batch, PATIENT, lambda _: None).base.result(60)
    return MadeBase("count", "state", 0, 0, 16, batch, list(base.materialized))


def at_a_cut() -> tuple[Subtask, MadeBase]:
    """A table with a completed checkpoint, the base that a follower made of it, and changes since then."""
    subtask = make(log_handles_max=100)
    subtask.run(1, 2)
    subtask.run(2)
    handle = subtask.checkpoint(1)
    subtask.keyed.completed(1)
    base = made(subtask, handle, subtask.batch)
    subtask.run(3)
    subtask.run(2)
    return subtask, base


def test_the_next_checkpoint_names_the_base_and_the_log_since_its_cut():
    subtask, base = at_a_cut()
    assert subtask.keyed.take_base(base)
    assert {each.object for each in base.parts} <= set(subtask.keyed.held())
    handle = subtask.checkpoint(2)  # compares a restore with the table
    assert handle.materialized == base.parts
    subtask.keyed.completed(2)
    subtask.run(4)
    assert subtask.checkpoint(3).materialized == base.parts


def test_bases_that_do_not_fit_the_log_or_come_too_late_are_refused():
    subtask, base = at_a_cut()
    strange = MadeBase("count", "state", 0, 0, 16, base.batch + 1, base.parts)
    narrow = MadeBase("count", "state", 0, 0, 8, base.batch, base.parts)
    assert not subtask.keyed.take_base(strange), "no cut of this table"
    assert not subtask.keyed.take_base(narrow), "other key groups"
    assert subtask.keyed.take_base(base)
    assert not subtask.keyed.take_base(base), "it is there already"
    subtask.keyed.close()
    assert not subtask.keyed.take_base(base)


@pytest.mark.parametrize("completes", [True, False])
def test_an_own_materialization_that_ends_after_a_newer_base_was_taken_is_deleted(completes: bool):
    subtask = make(log_handles_max=2)
    subtask.shared_open.clear()
    for checkpoint_id in (1, 2, 3):  # the third batch begins an own materialization
        subtask.run(1)
        handle = subtask.checkpoint(checkpoint_id)
        subtask.keyed.completed(checkpoint_id)
    subtask.run(2)
    handle = subtask.checkpoint(4)
    subtask.keyed.completed(4)
    follower = Uploader(subtask.inner, 1, 2)
    base = made(subtask, handle, subtask.batch, follower)
    assert subtask.keyed.take_base(base)
    if completes:
        subtask.checkpoint(5)
        subtask.keyed.completed(5)
    subtask.shared_open.set()
    subtask.materialized(1)
    until(lambda: {name for name in subtask.names() if name.startswith("shared/")} == {base.parts[0].object})
    assert subtask.metric("completedMaterialization") == 1
    assert subtask.checkpoint(6).materialized == base.parts
    follower.close()
