"""The frame around small objects: nothing damaged or unknown gets through."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import CorruptObject
from holdfast.storage.framing import HEADER_BYTES, frame, unframe


@given(st.binary(max_size=200))
def test_a_payload_comes_back(payload: bytes) -> None:
    assert unframe("x", frame(b"HFXX", 3, payload), b"HFXX", 3) == payload


@given(st.binary(max_size=40), st.data())
def test_any_truncation_is_noticed(payload: bytes, data: st.DataObject) -> None:
    stored = frame(b"HFXX", 3, payload)
    length = data.draw(st.integers(0, len(stored) - 1))
    with pytest.raises(CorruptObject, match="dstl/7"):
        unframe("dstl/7", stored[:length], b"HFXX", 3)


@given(st.binary(max_size=40), st.data())
def test_any_flipped_bit_is_noticed(payload: bytes, data: st.DataObject) -> None:
    stored = bytearray(frame(b"HFXX", 3, payload))
    bit = data.draw(st.integers(0, len(stored) * 8 - 1))
    stored[bit // 8] ^= 1 << bit % 8
    with pytest.raises(CorruptObject, match="dstl/7"):
        unframe("dstl/7", bytes(stored), b"HFXX", 3)


@given(st.binary(max_size=40), st.binary(min_size=1, max_size=8))
def test_anything_appended_is_noticed(payload: bytes, tail: bytes) -> None:
    with pytest.raises(CorruptObject, match="damaged"):
        unframe("x", frame(b"HFXX", 3, payload) + tail, b"HFXX", 3)


def test_an_unknown_version_is_named_with_what_to_do() -> None:
    with pytest.raises(CorruptObject, match="journal/7: format version 4, expected 3: use the version of Holdfast"):
        unframe("journal/7", frame(b"HFXX", 4, b"payload"), b"HFXX", 3)


def test_another_kind_of_object_is_named() -> None:
    with pytest.raises(CorruptObject, match="expected an object that starts with b'HFXX', found b'HFYY'"):
        unframe("x", frame(b"HFYY", 3, b"payload"), b"HFXX", 3)


def test_the_header_is_as_long_as_its_drawing() -> None:
    assert HEADER_BYTES == 16
    assert frame(b"HFXX", 258, b"ab")[:8] == b"HFXX\x02\x01\x00\x00"
    assert frame(b"HFXX", 258, b"ab")[12:] == b"\x02\x00\x00\x00ab"
