"""Executors are probed before a job starts."""

import re
import sys
import threading
import types
from functools import partial
from pathlib import Path
from unittest import mock

import cloudpickle
import pytest
from host_kit import NamedHost

from holdfast.errors import JobRefused
from holdfast.spark import probe, probing
from holdfast.storage import names
from holdfast.storage.store import open_store

STORAGE = ("memory://probed", {})


@pytest.mark.parametrize("deleted", [1, 2])
def test_a_probe_that_the_clean_up_of_another_driver_deleted_is_repeated(deleted):
    store = open_store("memory://probed")
    asked = 0

    def probes(session, program, storage, nonce, tasks):
        nonlocal asked
        asked += 1
        if asked <= deleted:
            store.delete([nonce[0]])
            raise JobRefused("executor on a: it cannot read what the driver wrote")
        assert store.get(nonce[0]) == nonce[1]

    with mock.patch.object(probing, "probe_executors", probes):
        probing._probe(mock.Mock(), b"", STORAGE, store, 1)
    assert asked == deleted + 1
    assert not store.list(names.PROBES)


def test_a_probe_that_is_there_and_cannot_be_read_is_refused_at_once():
    store = open_store("memory://probed")
    probes = mock.Mock(side_effect=JobRefused("executor on a: it cannot read what the driver wrote"))
    with mock.patch.object(probing, "probe_executors", probes), pytest.raises(JobRefused, match="executor on a"):
        probing._probe(mock.Mock(), b"", STORAGE, store, 1)
    assert probes.call_count == 1
    assert not store.list(names.PROBES)


def test_a_python_without_holdfast_is_named_with_its_place_and_the_remedy():
    with mock.patch.dict(sys.modules, {"holdfast": None}):
        found = probe._probe(b"", STORAGE, ("probe", b""))
    session = mock.MagicMock(run=lambda tasks, body: [found])
    told = re.escape(f"({sys.executable}) cannot import Holdfast") + ".* let PYSPARK_PYTHON name a Python that has it"
    with pytest.raises(JobRefused, match=told):
        probe.probe_executors(session, b"", STORAGE, ("probe", b""), 1)


def plain_thread(run, name):
    return threading.Thread(target=run, name=name)


class Session:
    """A stand-in for a session with executors, whose programs are probed."""

    def __init__(self, application, master="spark://host:7077"):
        self.executors = ["a:1", "b:1"]
        there = types.SimpleNamespace(application=application, executors=lambda: frozenset(self.executors))
        self.host = NamedHost(master, there)
        self.probes, self.problem = [], None

    def start(self, program, url="memory://probed"):
        """Begin a job; return the number of tasks that probed, 0 if nothing did."""
        probes = []

        def probe_executors(session, shipped, storage, nonce, tasks):
            probes.append(tasks)
            if self.problem:
                raise JobRefused(self.problem)

        shipped = cloudpickle.dumps(program)
        with (
            mock.patch.object(probing, "probe_executors", probe_executors),
            mock.patch.object(probing, "new_thread", plain_thread),
        ):
            store = open_store("memory://probed")
            facts = probing.facts_of(shipped)
            probing.begin_probe(self.host, shipped, facts, store, (url, {}), lambda: 4).result()
        return sum(probes)


def test_executors_are_probed_once_for_the_same_modules_and_storage_and_again_for_what_is_new():
    session = Session("once")
    assert [session.start(re.compile), session.start(re.compile), session.start([re.compile])] == [4, 0, 0]
    assert [session.start(re.sub), session.start([re.compile, re.sub])] == [4, 0]
    assert [session.start(re.sub, "s3://bucket/jobs/a"), session.start(re.sub, "s3://bucket/jobs/a")] == [4, 0]
    session.executors = ["a:1", "c:1"]
    assert [session.start(re.sub), session.start(re.sub)] == [4, 0]
    session.executors = ["a:1", "b:1"]
    assert session.start(re.sub) == 4  # its port may be that of another executor
    assert Session("another").start(re.sub) == 4


def test_a_probe_that_fails_is_repeated_at_the_next_start():
    session = Session("fails")
    session.problem = "executor on a: no"
    for _ in range(2):
        with pytest.raises(JobRefused, match="executor on a: no"):
            session.start(re.compile)
    session.problem = None
    assert [session.start(re.compile), session.start(re.compile)] == [4, 0]


@pytest.mark.parametrize("url", ["s3://bucket-%s", "s3://bucket/jobs/%s", "file:///mnt/%s", "memory://%s"])
def test_a_storage_beside_a_storage_that_executors_read_is_probed(url):
    """A storage beside it may be a bucket of its own, a disk of the driver's machine alone, or the driver's memory."""
    session = Session(f"beside {url}")
    assert session.start(re.sub, url % "a") == 4
    session.problem = "executor on a: it cannot read what the driver wrote"
    with pytest.raises(JobRefused, match="cannot read what the driver wrote"):
        session.start(re.sub, url % "b")


def test_the_machine_of_the_driver_is_probed_by_a_single_task_for_all_its_files_but_not_for_its_memory():
    session = Session("local", "local[4]")
    assert [session.start(re.compile, "file:///a/b"), session.start(re.compile, "file:///c/d")] == [1, 0]
    session.problem = "executor on a: it cannot read what the driver wrote"
    with pytest.raises(JobRefused, match="cannot read what the driver wrote"):
        session.start(re.compile, "memory://a")


def test_the_names_that_a_program_needs_are_found_and_none_of_modules_that_travel_with_it():
    own = types.ModuleType("travels")
    exec("def doubled(x):\n    return 2 * x", own.__dict__)
    with mock.patch.dict(sys.modules, travels=own):
        needed = probing.facts_of(cloudpickle.dumps([partial(own.doubled, 1), Path, re.compile, Path]))
        assert {"travels:doubled", "pathlib:Path", "re:compile", "functools:partial"} <= needed
        cloudpickle.register_pickle_by_value(own)
        try:
            assert not any("travels" in fact for fact in probing.facts_of(cloudpickle.dumps(own.doubled)))
        finally:
            cloudpickle.unregister_pickle_by_value(own)
    assert "sys" in probing.facts_of(cloudpickle.dumps(lambda: sys.path))
    assert probing.facts_of(bytes(probing.PROGRAM_BYTES_MAX + 1)) is None


def test_a_check_beside_the_start_gives_its_error_where_the_start_waits_for_it():
    going = threading.Event()

    def check():
        going.wait(30)
        raise JobRefused("the storage cannot be reached")

    with mock.patch.object(probing, "new_thread", plain_thread):
        beside = probing.Beside(check)
    assert beside.running
    going.set()
    with pytest.raises(JobRefused, match="the storage cannot be reached"):
        beside.result()
    assert not probing.Beside(None).running
