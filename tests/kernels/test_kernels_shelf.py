"""Compiled kernels are found on the machine or with the JobMaster; one that is damaged, or open to others, is not."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.errors import SettingsError
from holdfast.kernels import places
from holdfast.kernels.shelf import KERNEL_BYTES_MAX, KernelName, Shelf, sealed, unsealed

NAME = KernelName("cpython-311-numba-1-some", "0" * 64)
OTHER = KernelName("cpython-311-numba-1-some", "1" * 64)
CODE = sealed(b"code")


def shelf_of(*folders: Path) -> Shelf:
    return Shelf(lambda: iter(folders))


def test_a_kernel_is_kept_in_the_first_folder_that_can_be_written_and_found_in_each(tmp_path: Path) -> None:
    (tmp_path / "a file").touch()
    first, second = tmp_path / "a file" / "no folder", tmp_path / "with a space"
    assert shelf_of(first, second).keep(NAME, CODE)
    assert (second / NAME.folder / NAME.address).is_file()
    assert shelf_of(first, second).find(NAME) == CODE
    assert shelf_of(first).find(NAME) is None


def test_where_nothing_can_be_written_a_kernel_stays_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    shelf = shelf_of(tmp_path / "file" / "none")
    assert shelf.keep(NAME, CODE) and shelf.find(NAME) == CODE
    lock = shelf.lock(NAME)
    assert lock is None


@pytest.mark.parametrize("damage", [b"", b"short", CODE[:-1], CODE[:-1] + b"x", b"0" * 64])
def test_a_damaged_kernel_is_not_found(tmp_path: Path, damage: bytes) -> None:
    shelf = shelf_of(tmp_path)
    shelf.keep(NAME, CODE)
    (tmp_path / NAME.folder / NAME.address).write_bytes(damage)
    assert shelf.find(NAME) is None
    assert not shelf.keep(OTHER, damage) and shelf.find(OTHER) is None


def test_a_kernel_that_inflates_beyond_the_bound_is_refused() -> None:
    assert unsealed(sealed(bytes(KERNEL_BYTES_MAX))) is not None
    assert unsealed(sealed(bytes(KERNEL_BYTES_MAX + 1))) is None


@pytest.mark.parametrize("opened", [".", NAME.folder, f"{NAME.folder}/{NAME.address}"])
def test_a_kernel_that_other_users_can_write_is_not_found(tmp_path: Path, opened: str) -> None:
    folder = tmp_path / "kernels"
    shelf_of(folder).keep(NAME, CODE)
    (folder / opened).chmod(0o777)
    assert shelf_of(folder).find(NAME) is None


def test_a_link_to_a_kernel_is_not_followed(tmp_path: Path) -> None:
    shelf = shelf_of(tmp_path)
    shelf.keep(OTHER, CODE)
    (tmp_path / NAME.folder / NAME.address).symlink_to(tmp_path / OTHER.folder / OTHER.address)
    assert shelf.find(NAME) is None


@pytest.mark.parametrize("name", [KernelName("..", "0" * 64), KernelName("a/b", "0" * 64), KernelName("a", "../x")])
def test_a_name_that_leads_out_of_the_folder_is_no_kernel(tmp_path: Path, name: KernelName) -> None:
    with pytest.raises(SettingsError, match="expected the folder and address"):
        shelf_of(tmp_path).find(name)
    with pytest.raises(SettingsError, match="expected the folder and address"):
        shelf_of(tmp_path).keep(name, CODE)


class Asked:
    """A JobMaster that has a kernel, or gives an answer that is wrong, or none."""

    def __init__(self, answer: tuple[int, bytes] | None) -> None:
        self.answer = answer
        self.asked = 0
        self.given: list[KernelName] = []

    def kernel(self, names: Sequence[KernelName]) -> tuple[int, bytes]:
        self.asked += 1
        if self.answer is None:
            raise ConnectionError("it does not answer")
        return self.answer

    def keep_kernel(self, name: KernelName, data: bytes) -> bool:
        self.given.append(name)
        return True


def test_the_job_master_is_asked_last_and_its_kernel_is_kept(tmp_path: Path) -> None:
    shelf, job_master = shelf_of(tmp_path), Asked((1, CODE))
    shelf.ask(job_master)
    assert shelf.find_first([OTHER, NAME]) == (NAME, CODE)
    assert shelf.find_first([OTHER, NAME]) == (NAME, CODE)
    assert job_master.asked == 1


@pytest.mark.parametrize("answer", [(-1, b""), (7, CODE), (0, CODE[:-1]), None])
def test_a_wrong_answer_is_no_kernel_and_without_one_nobody_is_asked_again(
    tmp_path: Path, answer: tuple[int, bytes] | None
) -> None:
    shelf, job_master = shelf_of(tmp_path), Asked(answer)
    shelf.ask(job_master)
    assert [shelf.find_first([NAME]), shelf.find_first([NAME])] == [None, None]
    assert job_master.asked == (1 if answer is None else 2)


def test_a_kernel_compiled_here_is_given_to_the_job_master(tmp_path: Path) -> None:
    shelf, job_master = shelf_of(tmp_path), Asked(None)
    shelf.ask(job_master)
    shelf.keep_everywhere(NAME, CODE)
    assert job_master.given == [NAME] and shelf.find(NAME) == CODE


def test_one_process_at_a_time_compiles_a_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.kernels.shelf.LOCK_S_MAX", 0.0)
    first, second = shelf_of(tmp_path).lock(NAME), shelf_of(tmp_path).lock(NAME)
    assert first is not None and second is None
    other = shelf_of(tmp_path).lock(OTHER)
    first.release()
    again = shelf_of(tmp_path).lock(NAME)
    assert other is not None and again is not None
    other.release()
    again.release()


def test_of_many_kernels_the_oldest_are_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.kernels.shelf.FILES_MAX", 2)
    shelf = shelf_of(tmp_path)
    for number in range(4):
        shelf.keep(KernelName(NAME.folder, str(number) * 64), CODE)
    assert len(list((tmp_path / NAME.folder).iterdir())) == 2


def test_compiled_kernels_are_looked_for_in_no_storage() -> None:
    folder = Path(places.__file__).parent
    imported = "\n".join(each.read_text() for each in folder.glob("*.py"))
    assert "holdfast.storage" not in imported and "obstore" not in imported
