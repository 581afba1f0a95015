"""Answers of many senders are read by few threads, and by more where answers take long."""

import threading

from holdfast.jobmaster.processes.readers import READERS_MIN, Readers
from waiting import until


def test_answers_that_come_soon_are_read_by_few_threads() -> None:
    readers, threads, read = Readers(100), set(), threading.Semaphore(0)

    def answer() -> None:
        threads.add(threading.get_ident())
        read.release()

    for _ in range(500):
        readers.read(answer)
    for _ in range(500):
        assert read.acquire(timeout=10)
    readers.close()
    assert 1 <= len(threads) <= READERS_MIN


def test_an_answer_that_takes_long_does_not_delay_those_behind_it() -> None:
    readers, go, read = Readers(20), threading.Event(), threading.Event()
    for _ in range(19):
        readers.read(go.wait)  # type: ignore[arg-type]
    readers.read(read.set)

    def has_been_read() -> bool:
        readers.look()
        return read.is_set()

    until(has_been_read)
    assert not go.is_set()
    go.set()
    readers.close()


def test_nothing_is_read_after_the_end() -> None:
    readers, read = Readers(1), threading.Event()
    readers.close()
    readers.read(read.set)
    readers.look()
    assert not read.is_set()
