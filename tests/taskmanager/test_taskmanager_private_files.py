"""Files that a TaskManager writes to the machine's disk are for its owner alone, whatever the umask."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast as hf
from holdfast.recovery.local import open_copies
from holdfast.state.backends import new_table
from holdfast.state.own_folder import sweep
from holdfast.taskmanager.buffers import RowBuffer, SpillArea

OTHERS = stat.S_IRWXG | stat.S_IRWXO
SCHEMA = pa.schema([("k", pa.int64()), ("v", pa.int64())])


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Path]:
    """A folder that does not exist yet, under a umask that takes nothing away."""
    before = os.umask(0)
    yield tmp_path / "made" / "later"
    os.umask(before)


def open_to_others(folder: Path) -> list[str]:
    """Everything from `folder` down that others can read or enter."""
    if not folder.stat().st_mode & OTHERS:
        return []
    return [str(folder), *(found for each in folder.iterdir() if each.is_dir() for found in open_to_others(each))]


def test_rows_that_are_spilled(local: Path) -> None:
    area = SpillArea(0, str(local))
    kept = RowBuffer(area)
    kept.append(pa.record_batch([[1], [2]], schema=SCHEMA))
    (file,) = local.rglob("*.arrows")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert open_to_others(local) == []
    assert [batch.to_pydict() for batch in kept.batches()] == [{"k": [1], "v": [2]}]
    area.close()


def test_copies_for_recovery_also_in_a_folder_that_was_there_with_other_rights(local: Path) -> None:
    folder = local / f"holdfast-copies-{os.geteuid()}"
    folder.mkdir(parents=True)
    local.chmod(0o755)
    copies = open_copies(str(local), "0f" * 16, 0, 1_000_000)
    assert copies is not None
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert open_to_others(folder) == []
    copies.close(delete=True)


def test_state_in_rocksdb(local: Path) -> None:
    table = new_table(hf.RocksDBState(), str(local), pa.schema([SCHEMA.field("k")]), pa.schema([SCHEMA.field("v")]), 8)
    assert list(local.rglob("CURRENT"))
    assert open_to_others(local) == []
    table.close()


def test_a_leftover_folder_of_another_user_is_left_alone(local: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = local / "holdfast-state-of-another-user"
    folder.mkdir(parents=True)
    with monkeypatch.context() as as_other:
        as_other.setattr(os, "geteuid", lambda: folder.stat().st_uid + 1)
        sweep("holdfast-state-", str(local))
    assert folder.exists()
    sweep("holdfast-state-", str(local))
    assert not folder.exists()
