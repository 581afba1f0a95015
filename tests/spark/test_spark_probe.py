"""Executors are probed before a job starts."""

import re
import sys
from unittest import mock

import pytest

from holdfast.errors import JobRefused
from holdfast.spark import probe as probing
from holdfast.spark import start
from holdfast.storage import names
from holdfast.storage.store import open_store

JOB = mock.Mock(storage="memory://probed", storage_options={})


@pytest.mark.parametrize("deleted", [1, 2])
def test_a_probe_that_the_clean_up_of_another_driver_deleted_is_repeated(deleted):
    store = open_store("memory://probed")
    asked = 0

    def probe(session, program, storage, nonce, tasks):
        nonlocal asked
        asked += 1
        if asked <= deleted:
            store.delete([nonce[0]])
            raise JobRefused("executor on a: it cannot read what the driver wrote")
        assert store.get(nonce[0]) == nonce[1]

    with mock.patch.multiple(start, probe_executors=probe, slots=lambda session: 4):
        start._probe(JOB, mock.Mock(), b"", store, 1)
    assert asked == deleted + 1
    assert not store.list(names.PROBES)


def test_a_probe_that_is_there_and_cannot_be_read_is_refused_at_once():
    store = open_store("memory://probed")
    probe = mock.Mock(side_effect=JobRefused("executor on a: it cannot read what the driver wrote"))
    with (
        mock.patch.multiple(start, probe_executors=probe, slots=lambda session: 4),
        pytest.raises(JobRefused, match="executor on a"),
    ):
        start._probe(JOB, mock.Mock(), b"", store, 1)
    assert probe.call_count == 1
    assert not store.list(names.PROBES)


def test_a_python_without_holdfast_is_named_with_its_place_and_the_remedy():
    with mock.patch.dict(sys.modules, {"holdfast": None}):
        found = probing._probe(b"", ("memory://probed", {}), ("probe", b""))
    session = mock.MagicMock()
    session.sparkContext.parallelize().mapPartitions().collect.return_value = [found]
    told = re.escape(f"({sys.executable}) cannot import Holdfast") + ".* let PYSPARK_PYTHON name a Python that has it"
    with pytest.raises(JobRefused, match=told):
        probing.probe_executors(session, b"", ("memory://probed", {}), ("probe", b""), 1)
