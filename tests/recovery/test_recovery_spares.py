"""Spare files: bounded in number and bytes, chosen by length, and the oldest go first."""

from pathlib import Path

import pytest

from holdfast.recovery.spares import SPARE_BYTES_MAX, SPARES_MAX, SpareFiles


def file(number: int) -> Path:
    return Path(f"spare-{number}")


def test_past_the_bound_on_their_number_the_oldest_files_go() -> None:
    spares = SpareFiles()
    surplus = [each for number in range(SPARES_MAX + 3) for each in spares.offer(file(number), 1, SPARE_BYTES_MAX)]
    assert surplus == [file(0), file(1), file(2)]
    assert spares.clear() == [file(number) for number in range(3, SPARES_MAX + 3)]


@pytest.mark.parametrize(("length", "bytes_max"), [(SPARE_BYTES_MAX // 2, 10 * SPARE_BYTES_MAX), (50, 100)])
def test_past_a_bound_on_their_bytes_the_oldest_files_go(length: int, bytes_max: int) -> None:
    spares = SpareFiles()
    assert spares.offer(file(0), length, bytes_max) == spares.offer(file(1), length, bytes_max) == []
    assert spares.offer(file(2), length, bytes_max) == [file(0)]
    assert spares.offer(file(3), 3 * SPARE_BYTES_MAX, bytes_max) == [file(1), file(2), file(3)]


def test_a_file_is_chosen_by_its_length_and_once() -> None:
    spares = SpareFiles()
    for number, length in enumerate((1000, 10, 100, 5000)):
        spares.offer(file(number), length, SPARE_BYTES_MAX)
    assert spares.take(4) is None
    assert spares.take(60) == file(2)
    assert spares.take(60) == file(1)
    assert spares.take(60) is None
    assert spares.take(1_000_000) == file(3)
    assert spares.offer(file(4), 7, 1007) == []
    assert spares.clear() == [file(0), file(4)]
