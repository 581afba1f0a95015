"""A cache of kernels that other users can write to is not used, and a warning says so."""

import logging
import os
from pathlib import Path

import pytest

from holdfast.kernels import places
from holdfast.kernels.places import is_own_cache


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "cache"
    made.mkdir(mode=0o700)
    (made / "k.nbi").write_bytes(b"")
    (made / "k.nbi").chmod(0o600)
    return made


def test_a_cache_of_this_user_is_used_also_where_it_does_not_exist_yet(folder: Path) -> None:
    assert is_own_cache(str(folder))
    assert is_own_cache(str(folder / "not" / "made"))


@pytest.mark.parametrize("writable", [".", ".."])
def test_a_cache_that_others_can_write_to_is_not_used(
    folder: Path, writable: str, caplog: pytest.LogCaptureFixture
) -> None:
    open_folder = folder / writable
    open_folder.chmod(0o777)
    with caplog.at_level(logging.WARNING):
        assert not is_own_cache(str(folder))
        assert not is_own_cache(str(folder))
    assert caplog.text.count("are not used") == 1
    assert "chmod -R go-w" in caplog.text and "NUMBA_CACHE_DIR" in caplog.text


def test_a_folder_like_tmp_in_which_each_user_keeps_own_files_is_no_danger(folder: Path) -> None:
    folder.parent.chmod(0o1777)
    assert is_own_cache(str(folder))


def test_folders_are_searched_from_the_users_choice_to_the_machines(
    monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cached"))
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", None)
    found = list(places.folders())
    own = folder / f"holdfast-kernels-{os.geteuid()}"
    kept = folder / "cached" / "holdfast" / "kernels"
    assert found == [folder / "holdfast", places.BESIDE_PACKAGE, kept, places.OF_MACHINE, own]


def test_without_a_home_folder_the_others_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    assert not any("nonexistent" in str(each) for each in places.folders())


def test_a_folder_that_cannot_be_made_cannot_be_written(folder: Path) -> None:
    assert places.can_be_written(folder / "made" / "anew")
    assert not places.can_be_written(folder / "k.nbi" / "below a file")
