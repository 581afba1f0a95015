"""Errors that cross from one process to another: the class says what may pass, whatever the text quotes."""

import errno

import pyarrow.flight as flight
import pytest

from holdfast.errors import (
    HoldfastError,
    ObjectNotFound,
    StorageError,
    UserFunctionError,
    class_abroad,
    is_outage,
)
from holdfast.exchange.task import failure_of
from holdfast.taskmanager.remote import remote_error, serving

FULL = [
    OSError(errno.ENOSPC, "No space left on device"),
    OSError(errno.EDQUOT, "Disk quota exceeded"),
    Exception("IO error: No space left on device: While appending to file: /tmp/1.sst"),
]


def lost(reason: str) -> Exception:
    return AssertionError(f"the connection is taken for lost: {reason}")


@pytest.mark.parametrize("error", FULL, ids=str)
def test_a_full_disk_is_an_outage_in_every_process_that_hears_of_it(error: Exception) -> None:
    with pytest.raises(flight.FlightServerError) as sent, serving("process"):
        raise error
    for heard in (remote_error(sent.value, lost), failure_of(error, "split 'a'").error()):
        assert isinstance(heard, StorageError) and is_outage(heard)


@pytest.mark.parametrize(
    "error", [ObjectNotFound("gone"), UserFunctionError("raised"), HoldfastError("StorageError: away")]
)
def test_other_errors_of_this_package_keep_their_class_and_are_no_outage(error: HoldfastError) -> None:
    with pytest.raises(flight.FlightServerError) as sent, serving("process"):
        raise error
    for heard in (remote_error(sent.value, lost), failure_of(error).error()):
        assert type(heard) is type(error) and not is_outage(heard)


def test_a_text_that_quotes_an_outage_makes_none() -> None:
    error = ValueError("holdfast.errors.StorageError: No space left on device")
    assert not class_abroad(error)
    assert not is_outage(failure_of(error).error())
