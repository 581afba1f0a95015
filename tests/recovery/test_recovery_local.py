"""Local copies: they are found again by another process, checked, bounded, and cleaned up."""

import os
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from holdfast.recovery import local, spares
from holdfast.recovery.local import LEFTOVER_S_MAX, LocalCopies, open_copies
from holdfast.storage import names
from waiting import until

JOB, OTHER_JOB = "a" * 32, "b" * 32


@pytest.fixture
def copies(tmp_path: Path):
    made = LocalCopies(str(tmp_path), JOB, 0, 1000)
    yield made
    made.close(delete=True)


def files(tmp_path: Path) -> list[Path]:
    """All files below, but for the marks of folders in use."""
    return sorted(path for path in tmp_path.rglob("*") if path.is_file() and path.name != local.IN_USE)


def name() -> str:
    return names.changelog_object(1, 1)


def of(copies: LocalCopies, wanted: str) -> bytes | None:
    found = copies.open(wanted)
    return None if found is None else found.data()


def test_an_object_is_found_again_by_its_successor_and_not_by_another_job(tmp_path: Path, copies: LocalCopies) -> None:
    first = name()
    copies.keep(first, b"some changes")
    assert of(copies, first) == b"some changes"
    assert of(copies, name()) is None
    successor, stranger = LocalCopies(str(tmp_path), JOB, 0, 1000), LocalCopies(str(tmp_path), OTHER_JOB, 0, 1000)
    stranger.refresh()
    assert of(successor, first) == b"some changes"
    assert (successor.size_bytes, stranger.size_bytes) == (12, 0)
    assert of(stranger, first) is None
    successor.close(delete=False)
    stranger.close(delete=True)


def test_a_copy_outlives_a_process_that_is_killed(tmp_path: Path) -> None:
    stored = name()
    script = (
        "import os, signal\n"
        "from holdfast.recovery.local import LocalCopies\n"
        f"LocalCopies({str(tmp_path)!r}, {JOB!r}, 0, 1000).keep({stored!r}, b'some changes')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert subprocess.run([sys.executable, "-c", script], timeout=60).returncode == -9
    successor = LocalCopies(str(tmp_path), JOB, 0, 1000)
    assert of(successor, stored) == b"some changes"
    successor.close(delete=True)
    assert files(tmp_path) == []


def test_a_file_that_does_not_change_is_linked_and_stays_when_its_owner_deletes_it(
    tmp_path: Path, copies: LocalCopies
) -> None:
    table, stored = tmp_path / "000012.sst", names.shared_object(1, 1)
    table.write_bytes(b"rows")
    copies.keep(stored, b"head" + b"rows", table)
    assert table.stat().st_nlink == 2
    table.unlink()
    found = copies.open(stored)
    assert found is not None and found.body is not None
    assert (found.head, found.body.read_bytes(), found.length) == (b"head", b"rows", 8)
    assert of(copies, stored) == b"headrows"


def test_a_file_on_a_file_system_that_cannot_link_is_copied(
    tmp_path: Path, copies: LocalCopies, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cannot(*_: object) -> None:
        raise OSError("no links here")

    monkeypatch.setattr(os, "link", cannot)
    table, stored = tmp_path / "000012.sst", names.shared_object(1, 1)
    table.write_bytes(b"rows")
    copies.keep(stored, b"head" + b"rows", table)
    assert of(copies, stored) == b"headrows"
    assert len(files(tmp_path)) == 2


@pytest.mark.parametrize("damage", [b"", b"some change", b"Some changes", b"some changes!"])
@pytest.mark.parametrize("linked", [False, True])
def test_a_damaged_copy_is_deleted_and_not_used(
    tmp_path: Path, copies: LocalCopies, damage: bytes, linked: bool
) -> None:
    table, stored = tmp_path / "t.sst", names.shared_object(1, 1)
    table.write_bytes(b"some changes")
    copies.keep(stored, b"head" * linked + b"some changes", table if linked else None)
    table.unlink()
    [damaged] = [path for path in files(tmp_path) if path.suffix in (local.OBJECT, local.BODY)]
    damaged.write_bytes(damage)
    assert copies.open(stored) is None
    assert files(tmp_path) == []
    assert copies.size_bytes == 0


def test_a_copy_that_vanished_is_no_copy(tmp_path: Path, copies: LocalCopies) -> None:
    stored = name()
    copies.keep(stored, b"some changes")
    [path] = files(tmp_path)
    path.unlink()
    assert copies.open(stored) is None
    assert copies.names() == set()


def test_past_the_bound_the_oldest_copies_go(tmp_path: Path, copies: LocalCopies) -> None:
    stored = [name() for _ in range(12)]
    for each in stored:
        copies.keep(each, b"x" * 100)
        assert copies.size_bytes <= 1000
    assert copies.names() == set(stored[2:])
    assert len(files(tmp_path)) == 10
    copies.keep(name(), b"x" * 1001)
    assert copies.names() == set(stored[2:])


def test_what_is_downloaded_makes_no_older_copy_go(copies: LocalCopies) -> None:
    uploaded, downloaded = name(), name()
    copies.keep(uploaded, b"x" * 600)
    copies.keep(downloaded, b"x" * 600, in_place_of_older=False)
    assert copies.names() == {uploaded}


def test_only_known_copies_that_nothing_needs_go(tmp_path: Path, copies: LocalCopies) -> None:
    needed, unneeded, later = name(), name(), name()
    copies.keep(needed, b"1")
    copies.keep(unneeded, b"2")
    known = copies.names()
    copies.keep(later, b"3")  # stored after the needed copies were looked up
    copies.keep_only({needed}, known)
    assert copies.names() == {needed, later}
    assert len([path for path in files(tmp_path) if path.suffix == local.OBJECT]) == 2


def test_nobody_waits_for_the_deletion_of_files_that_nothing_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copies, stored, allowed = LocalCopies(str(tmp_path), JOB, 0, 1000), name(), threading.Event()
    unlink = Path.unlink

    def slow(path: Path, missing_ok: bool = False) -> None:
        assert allowed.wait(60)
        unlink(path, missing_ok)

    monkeypatch.setattr(spares, "SPARE_BYTES_MAX", 0)
    monkeypatch.setattr(Path, "unlink", slow)
    copies.keep(stored, b"some changes")
    copies.keep_only([], [stored])
    assert (of(copies, stored), copies.size_bytes, len(files(tmp_path))) == (None, 0, 1)
    allowed.set()
    copies.close(delete=False)
    assert files(tmp_path) == []


def test_the_file_of_a_copy_let_go_is_written_over(tmp_path: Path, copies: LocalCopies) -> None:
    first, second, third = name(), name(), name()
    copies.keep(first, b"some changes")
    [before] = files(tmp_path)
    inode = before.stat().st_ino
    copies.keep_only([], [first])
    assert of(copies, first) is None
    copies.keep(second, b"other ones")
    [after] = files(tmp_path)
    assert after.stat().st_ino == inode
    copies.keep(third, b"a new file")
    assert (of(copies, second), of(copies, third)) == (b"other ones", b"a new file")
    assert copies.size_bytes == 20


def test_the_folder_has_a_bounded_number_of_files_while_copies_of_all_sizes_come_and_go(tmp_path: Path) -> None:
    copies = LocalCopies(str(tmp_path), JOB, 0, 1_000_000)
    for number in range(10 * spares.SPARES_MAX):
        # A growing object in each round, as a materialization is, and small ones that no file of its size may become.
        stored = {name(): b"x" * length for length in (50 * number, 7, 300)}
        for each, data in stored.items():
            copies.keep(each, data)
            assert of(copies, each) == data
        copies.keep_only([], stored)
    until(lambda: len(files(tmp_path)) <= spares.SPARES_MAX)
    copies.close(delete=False)
    assert files(tmp_path) == []


def test_a_copy_of_several_writes_is_whole_and_no_longer_than_its_object(tmp_path: Path) -> None:
    copies = LocalCopies(str(tmp_path), JOB, 0, 10 * local.WRITE_BYTES)
    for length in (2 * local.WRITE_BYTES + 7, 2 * local.WRITE_BYTES, local.WRITE_BYTES + 1):
        stored, data = name(), os.urandom(length)
        copies.keep(stored, data)
        assert of(copies, stored) == data
        copies.keep_only([], [stored])
    copies.close(delete=True)


def test_a_file_that_another_task_manager_has_taken_over_is_not_written_over(
    tmp_path: Path, copies: LocalCopies
) -> None:
    stored = name()
    copies.keep(stored, b"some changes")
    other = LocalCopies(str(tmp_path), JOB, 1, 1000)
    other.refresh()
    assert of(other, stored) == b"some changes"
    copies.keep_only([], [stored])
    copies.keep(name(), b"other ones")
    assert of(other, stored) == b"some changes"
    other.close(delete=True)


def test_copies_of_another_task_manager_of_the_job_are_used_and_taken_over(tmp_path: Path, copies: LocalCopies) -> None:
    first, second = name(), name()
    copies.keep(first, b"some changes")
    other = LocalCopies(str(tmp_path), JOB, 1, 1000)
    copies.keep(second, b"more")
    assert of(other, first) is None
    other.refresh()
    assert of(other, first) == b"some changes"
    copies.keep_only(set(), copies.names())
    assert of(other, first) == b"some changes"
    assert of(other, second) is None
    other.close(delete=True)


def test_what_a_predecessor_wrote_in_its_last_moment_is_found_too(tmp_path: Path, copies: LocalCopies) -> None:
    early, late = name(), name()
    copies.keep(early, b"some changes")
    successor = LocalCopies(str(tmp_path), JOB, 0, 1000)
    copies.keep(late, b"more")
    assert of(successor, late) is None
    successor.refresh()
    assert (of(successor, early), of(successor, late)) == (b"some changes", b"more")
    assert successor.size_bytes == 16
    successor.close(delete=False)


def test_nothing_is_kept_after_the_end_and_an_ordinary_end_deletes_the_folder(tmp_path: Path) -> None:
    copies = LocalCopies(str(tmp_path), JOB, 0, 1000)
    copies.keep(name(), b"some changes")
    copies.close(delete=True)
    copies.keep(name(), b"late")
    assert list(tmp_path.iterdir()) == []


def test_folders_that_nobody_uses_go_after_a_while_and_others_stay(tmp_path: Path) -> None:
    used, left = LocalCopies(str(tmp_path), JOB, 0, 1000), LocalCopies(str(tmp_path), JOB, 1, 1000)
    fresh = LocalCopies(str(tmp_path), OTHER_JOB, 0, 1000)
    stored = [name() for _ in range(3)]
    for each, object_name in zip((used, left, fresh), stored, strict=True):
        each.keep(object_name, b"some changes")
    left.close(delete=False)
    fresh.close(delete=False)
    long_ago_s = time.time() - LEFTOVER_S_MAX - 60
    for folder in tmp_path.glob(f"*/{JOB}/tm-*"):
        os.utime(folder, (long_ago_s, long_ago_s))
    another = LocalCopies(str(tmp_path), JOB, 2, 1000)
    assert {path.name.split(".")[3] for path in files(tmp_path)} == {stored[0][-32:], stored[2][-32:]}
    another.close(delete=True)
    used.close(delete=True)


def test_unfinished_files_of_a_process_that_died_go_and_strange_ones_stay(tmp_path: Path, copies: LocalCopies) -> None:
    stored = name()
    copies.keep(stored, b"some changes")
    [path] = files(tmp_path)
    (path.parent / f"{local.UNFINISHED}1").write_bytes(b"some")
    (path.parent / "notes.txt").write_bytes(b"mine")
    (path.parent / path.name.replace(local.OBJECT, local.BODY)).write_bytes(b"without its head")
    successor = LocalCopies(str(tmp_path), JOB, 0, 1000)
    assert successor.names() == {stored}
    assert {each.name for each in files(tmp_path)} >= {"notes.txt", path.name}
    assert not (path.parent / f"{local.UNFINISHED}1").exists()
    successor.close(delete=False)


def test_a_disk_that_is_full_costs_the_copy_and_is_said_once(
    copies: LocalCopies, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "open", full)
    for _ in range(3):
        copies.keep(name(), b"some changes")
    assert copies.names() == set()
    assert [record.levelname for record in caplog.records if "No space left" in record.message] == ["WARNING"]


def test_a_folder_that_cannot_be_made_turns_local_recovery_off(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_bytes(b"")
    assert open_copies(str(tmp_path / "file"), JOB, 0, 1000) is None
    assert "local recovery is off for TaskManager 0" in caplog.text
    assert open_copies(str(tmp_path), JOB, 0, 0) is None
    assert not list(tmp_path.glob("holdfast-copies*"))


def test_no_symbolic_link_among_the_copies_is_followed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    outside, long_ago_s = tmp_path / "outside", time.time() - LEFTOVER_S_MAX - 60
    (outside / "tm-0").mkdir(parents=True)
    (outside / "tm-0" / "precious.txt").write_text("x")
    first = LocalCopies(str(tmp_path), JOB, 0, 1000)
    (root,) = tmp_path.glob("holdfast-copies*")
    (root / OTHER_JOB).symlink_to(outside)
    (root / JOB / "tm-5").symlink_to(outside / "tm-0")
    os.utime(outside / "tm-0", (long_ago_s, long_ago_s))
    first.refresh()
    first.close(delete=False)
    LocalCopies(str(tmp_path), JOB, 1, 1000).close(delete=True)
    for job, task_manager in ((OTHER_JOB, 0), (JOB, 5)):
        assert open_copies(str(tmp_path), job, task_manager, 1000) is None
        assert "behind a symbolic link, which is not followed" in caplog.text
    (root / JOB / "tm-6").mkdir(parents=True)
    (root / JOB / "tm-6" / local.IN_USE).symlink_to(outside / "made")
    assert open_copies(str(tmp_path), JOB, 6, 1000) is None
    assert [path.name for path in outside.rglob("*")] == ["tm-0", "precious.txt"]
