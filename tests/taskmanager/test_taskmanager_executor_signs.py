"""The sign that an executor is about to be removed, in a picture of Linux's list of processes."""

import threading

import pytest

from holdfast.taskmanager import executor_signs
from holdfast.taskmanager.executor_signs import AncestorThreads, await_end


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """A worker 30 below a daemon 20 below an executor 10, which has two threads."""
    monkeypatch.setattr(executor_signs, "PROCESSES", tmp_path)
    for process, parent, name in ((10, 1, "java"), (20, 10, "a (very) odd name"), (30, 20, "python3")):
        (tmp_path / str(process)).mkdir()
        (tmp_path / str(process) / "stat").write_text(f"{process} ({name}) S {parent} 1 1")
        (tmp_path / str(process) / "comm").write_text(f"{name}\n")
        thread(tmp_path, process, process, name)
    thread(tmp_path, 10, 11, "Executor task l")
    return tmp_path


def thread(folder, process, number, name):
    (folder / str(process) / "task" / str(number)).mkdir(parents=True, exist_ok=True)
    (folder / str(process) / "task" / str(number) / "comm").write_text(f"{name}\n")


def test_the_thread_of_an_executor_that_is_decommissioned_is_seen_once_it_has_its_name(processes):
    threads = AncestorThreads(30)
    assert threads.leaving() is None
    thread(processes, 10, 12, "java")  # it has just started, and does not have its own name yet
    assert threads.leaving() is None
    thread(processes, 10, 12, "wait-for-blocks")
    assert threads.leaving() == 10


def test_a_number_that_a_new_thread_takes_over_is_read_again(processes):
    threads = AncestorThreads(30)
    threads.leaving()
    (processes / "10" / "task" / "11" / "comm").unlink()
    (processes / "10" / "task" / "11").rmdir()
    assert threads.leaving() is None
    thread(processes, 10, 11, "wait-for-blocks")
    assert threads.leaving() == 10


def test_a_system_that_shows_no_threads_gives_no_sign(processes):
    (processes / "20" / "stat").unlink()
    assert AncestorThreads(30).leaving() is None
    assert AncestorThreads(99).leaving() is None


def test_the_wait_for_the_end_tells_of_the_removal_only_if_it_is_asked_to_look(processes, monkeypatch):
    monkeypatch.setattr(executor_signs, "LOOK_S", 0.001)
    monkeypatch.setattr(executor_signs.os, "getpid", lambda: 30)
    thread(processes, 10, 12, "wait-for-blocks")
    assert "/10 is to go: it was decommissioned" in await_end(threading.Event(), looks=True)
    stopped = threading.Event()
    stopped.set()
    assert await_end(stopped, looks=True) == await_end(stopped, looks=False) == ""
