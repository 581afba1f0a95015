"""Heartbeats and words of drivers in waiting: round trip, refusals, golden files."""

import os
from pathlib import Path

import pytest

from holdfast.errors import CorruptObject
from holdfast.formats.leader import (
    LeaderState,
    StoredBeat,
    StoredWaiting,
    decode_beat,
    decode_waiting,
    encode_beat,
    encode_waiting,
)
from holdfast.storage import names

GOLDEN = Path(__file__).parent / "golden"
JOB = "0123456789abcdef" * 2
BEAT = StoredBeat(JOB, 17, 4, LeaderState.STOPPED, "10.0.0.7:4711", 18)
IN_CLUSTER = StoredBeat(JOB, 17, 4, LeaderState.LEADS, "", 18, "6ba7b810-9dad-41d1-80b4-00c04fd430c8")
WAITING = StoredWaiting(JOB, "fedcba9876543210" * 2, 3, 2.5)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("beat-1.bin", encode_beat(BEAT)),
        ("beat-2.bin", encode_beat(IN_CLUSTER)),
        ("waiting-1.bin", encode_waiting(WAITING)),
    ],
)
def test_the_golden_objects_have_not_changed(name, data):
    if os.environ.get("REWRITE_GOLDEN"):
        (GOLDEN / name).write_bytes(data)
    assert (GOLDEN / name).read_bytes() == data


def test_heartbeats_and_words_come_back_as_they_were():
    for beat in (BEAT, IN_CLUSTER):
        assert decode_beat(names.leader(17), encode_beat(beat)) == beat
    assert decode_waiting(names.standby(), encode_waiting(WAITING)) == WAITING


def test_a_heartbeat_of_another_epoch_is_refused():
    with pytest.raises(CorruptObject, match="holds the object leader/000000000017"):
        decode_beat(names.leader(16), encode_beat(BEAT))


def test_damaged_bytes_are_refused_by_name():
    data = encode_waiting(WAITING)
    with pytest.raises(CorruptObject, match="standby"):
        decode_waiting(names.standby(), data[:-1] + b"x")
