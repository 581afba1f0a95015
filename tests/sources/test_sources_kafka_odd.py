"""Messages as other clients write them: names of headers that are not UTF-8, times that leave the calendar."""

import pytest
from test_sources_kafka import NOW_MS, Reading

import kafka_kit
from holdfast.sources.kafka.kafka_source import KafkaSource
from kafka_kit import Writer, new_topic, put_with_header

pytestmark = pytest.mark.usefixtures("each_kafka_reader")


def test_a_header_whose_name_is_not_utf_8_makes_a_bad_record_if_headers_are_asked_for():
    topic = new_topic()
    Writer().put(topic, ["a"], headers=[("h", b"\xff")])
    put_with_header(topic, b"x", b"na\xffme")
    Writer().put(topic, ["b"])
    rows, bad = Reading(KafkaSource(kafka_kit.address(), topic, value="string", metadata=["headers", "offset"])).rest()
    assert rows == [("a", [{"key": "h", "value": b"\xff"}], 0), ("b", None, 2)]
    assert [(each.position, each.payload) for each in bad] == [("1", "x")]
    assert "header is not UTF-8" in bad[0].reason
    rows, bad = Reading(KafkaSource(kafka_kit.address(), topic, value="string", metadata=["offset"])).rest()
    assert rows == [("a", 0), ("x", 1), ("b", 2)] and not bad


def test_a_time_beyond_microseconds_makes_a_bad_record_and_no_other_time():
    anything = str(2**63 - 1)
    times = {"message.timestamp.after.max.ms": anything, "message.timestamp.before.max.ms": anything}
    topic = new_topic(**times)
    last, writer = (2**63 - 1) // 1000, Writer()
    for time_ms in (NOW_MS, 18446744073709557, last, last + 1, 2**63 - 1):
        writer.put(topic, ['{"a": 1}'], timestamp=time_ms)
    source = KafkaSource(kafka_kit.address(), topic, value="json", schema="a INT", metadata=["timestamp", "offset"])
    found = list(read_batches(source))
    times_us = [time for each in found for time in each.rows.column("timestamp").cast("int64").to_pylist()]
    assert times_us == [NOW_MS * 1000, last * 1000]
    assert [(bad.position, bad.payload) for each in found for bad in each.bad] == [
        (offset, '{"a": 1}') for offset in ("1", "3", "4")
    ]


def read_batches(source):
    reading = Reading(source)
    for read in reading.planner.plan(reading.at, reading.planner.latest(), 100, 10**9).reads:
        yield from source.read(read)
