"""Processes of a job ask its JobMaster for compiled kernels, and give it theirs, over the job's own connections."""

import contextlib
from pathlib import Path
from unittest.mock import Mock

import pytest

from holdfast.errors import SettingsError
from holdfast.jobmaster.server import JobMasterServer
from holdfast.kernels.shelf import KernelName, Shelf, sealed
from holdfast.ports import Endpoint
from holdfast.taskmanager.jobmaster_client import JobMasterClient
from holdfast.taskmanager.security import new_secret


def test_compiled_kernels_are_asked_of_the_job_master_and_given_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("holdfast.jobmaster.server.SHELF", Shelf(lambda: iter([tmp_path])))
    name, absent = KernelName("of-this-processor", "a" * 64), KernelName("of-this-processor", "b" * 64)
    secret = new_secret()
    with contextlib.ExitStack() as closing:
        server = JobMasterServer(Mock(), secret, Endpoint("127.0.0.1"))
        closing.callback(server.close)
        client = JobMasterClient(server.address, secret)
        closing.callback(client.close)
        assert client.kernel([absent, name]) == (-1, b"")
        assert client.keep_kernel(name, b"damaged") is False
        assert client.keep_kernel(name, sealed(b"code")) is True
        assert client.kernel([absent, name]) == (1, sealed(b"code"))
        with pytest.raises(SettingsError, match="expected the folder and address"):
            client.keep_kernel(KernelName("..", "a" * 64), sealed(b"code"))
