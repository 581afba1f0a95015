"""A cache of kernels that other users can write to is not used, and a warning says so."""

import logging
from pathlib import Path

import pytest

from holdfast.state.compiled import kernel
from holdfast.state.kernel_cache import is_own_cache


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


@pytest.mark.parametrize("writable", [".", "..", "k.nbi"])
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


def test_a_kernel_is_compiled_without_a_cache_that_is_not_own(monkeypatch: pytest.MonkeyPatch) -> None:
    def one(x: int) -> int:
        return x + 1

    assert kernel(one)._cache is not None  # type: ignore[attr-defined]
    monkeypatch.setattr("holdfast.state.compiled.is_own_cache", lambda folder: False)
    assert type(kernel(one)._cache).__name__ == "NullCache"  # type: ignore[attr-defined]
