"""Reading from a real Kafka broker: refusals, first positions, lost positions, values and bad messages."""

import re
import time
from datetime import UTC, datetime, timedelta

import cloudpickle
import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import NewPartitions
from sources_kit import new_store, rows_between

import kafka_kit
from holdfast.clock import ManualClock
from holdfast.errors import JobRefused, PositionLost, SettingsError
from holdfast.sources.base import EnumeratorContext
from holdfast.sources.kafka.kafka_source import KafkaSource
from kafka_kit import Writer, new_topic
from waiting import until

SECRET = "not-to-be-shown"
NOW_MS = int(time.time() * 1000)
"""A time of messages; those of long ago are deleted by retention."""


def source(topics="", **settings) -> KafkaSource:
    settings.setdefault("metadata", [])
    return KafkaSource(kafka_kit.address(), topics, **{"value": "string"} | settings)


class Reading:
    """An enumerator with a clock, and the position up to which its rows were read."""

    def __init__(self, source: KafkaSource, at=None) -> None:
        source.schema()
        self.source, self.clock = source, ManualClock()
        self.planner = source.enumerator(EnumeratorContext(new_store(), "events", 1, self.clock))
        if at is None:
            self.at = self.planner.initial()
        else:
            self.planner.restore(at, [])
            self.at = at

    def rest(self):
        """(rows, bad rows) that are there now and were not read yet."""
        self.clock.advance(10)
        latest = self.planner.latest()
        found = rows_between(self.source, self.at, latest, self.planner)
        self.at = self.at | latest
        return found

    def values(self):
        return sorted(row[0] for row in self.rest()[0])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"topics": ""}, "topics or pattern"),
        ({"topics": "a", "pattern": "b"}, "topics or pattern"),
        ({"topics": "a", "starting": "oldest"}, "starting='oldest'"),
        ({"topics": "a", "starting": datetime(2026, 1, 1)}, "time zone"),
        ({"topics": "a", "starting": {"a": 1}}, "topic/partition"),
        ({"topics": "a", "value": "xml"}, "value='xml'"),
        ({"topics": "a", "value": "json"}, "schema"),
        ({"topics": "a", "value": "json", "schema": "key STRING", "metadata": ["key"]}, "column 'key'"),
        ({"topics": "a", "metadata": ["size"]}, "'size'"),
        ({"topics": "a", "on_lost": "ignore"}, "on_lost='ignore'"),
        ({"topics": "a", "options": {"isolation.level": "read_uncommitted"}}, "'isolation.level'"),
        ({"topics": "a", "options": {"group.id": "mine"}}, "'group.id'"),
    ],
)
def test_settings_that_cannot_be_are_refused_by_name(settings, named):
    with pytest.raises(SettingsError, match=named):
        KafkaSource("127.0.0.1:1", **settings)


def test_an_option_that_the_client_does_not_know_is_refused_in_the_clients_words():
    with pytest.raises(SettingsError, match=r"no\.such\.option"):
        source("a", options={"no.such.option": 1}).schema()


def test_a_topic_that_does_not_exist_is_refused_at_start():
    with pytest.raises(JobRefused, match="'no-such-topic' does not exist"):
        source("no-such-topic").schema()


def test_a_broker_that_does_not_answer_is_refused_at_start(monkeypatch):
    monkeypatch.setattr("holdfast.sources.kafka.cluster.ANSWER_S_MAX", 0.5)
    with pytest.raises(JobRefused, match="is the address right"):
        KafkaSource("127.0.0.1:1", "a").schema()


def test_options_are_shown_nowhere(caplog):
    topic = new_topic()
    secret = source(topic, options={"sasl.password": SECRET, "ssl.key.password": SECRET})
    reading = Reading(secret)
    Writer().put(topic, ["a"])
    assert reading.values() == ["a"]
    assert SECRET not in repr(secret) + caplog.text
    with pytest.raises(SettingsError) as refused:
        source(topic, options={"sasl.password": SECRET, "no.such.option": SECRET}).schema()
    assert SECRET not in str(refused.value)


def test_metadata_columns_hold_what_the_message_holds():
    topic = new_topic()
    writer = Writer()
    writer.put(topic, ["a"], key=b"k", headers=[("h", b"1"), ("h", None)], timestamp=NOW_MS)
    writer.put(topic, [None], timestamp=NOW_MS + 1)
    reading = Reading(KafkaSource(kafka_kit.address(), topic))
    rows, _ = reading.rest()
    when = datetime.fromtimestamp(NOW_MS // 1000, UTC) + timedelta(milliseconds=NOW_MS % 1000)
    assert rows == [
        (b"a", b"k", [{"key": "h", "value": b"1"}, {"key": "h", "value": None}], topic, 0, 0, when),
        (None, None, None, topic, 0, 1, when + timedelta(milliseconds=1)),
    ]


def test_rows_of_a_transaction_are_read_once_it_has_ended_and_never_if_it_was_aborted():
    topic = new_topic()
    open_one, ended = Writer(transactional=True), Writer(transactional=True)
    reading = Reading(source(topic))
    ended.begin()
    ended.put(topic, ["a"])
    ended.commit()
    open_one.begin()
    open_one.put(topic, ["b"])
    Writer().put(topic, ["c"])
    assert reading.values() == ["a"], "the last stable offset is before the open transaction"
    open_one.abort()
    assert reading.values() == ["c"]
    assert reading.values() == []


def test_latest_is_after_what_is_there_and_a_time_is_the_first_message_since():
    topic = new_topic(2)
    writer = Writer()
    writer.put(topic, ["old"], timestamp=NOW_MS - 2_000)
    writer.put(topic, ["middle"], timestamp=NOW_MS)
    latest = Reading(source(topic, starting="latest"))
    since = Reading(source(topic, starting=datetime.fromtimestamp(NOW_MS / 1000 - 1, UTC)))
    given = Reading(source(topic, starting={f"{topic}/0": 1}))
    assert latest.planner.initial_varies and since.planner.initial_varies and not given.planner.initial_varies
    writer.put(topic, ["new"], partition=1, timestamp=NOW_MS + 2_000)
    assert latest.values() == ["new"]
    assert since.values() == given.values() == ["middle", "new"]


def test_new_partitions_and_new_topics_of_a_pattern_are_read_from_their_beginning():
    first = new_topic()
    prefix = first[:-2]
    reading = Reading(source(pattern=f"{prefix}.*", starting="latest"))
    kafka_kit.admin(kafka_kit.address()).create_partitions([NewPartitions(first, 2)])[first].result(60)
    second = new_topic(name=f"{prefix}-second")
    writer = Writer()
    until(lambda: len(kafka_kit.admin(kafka_kit.address()).list_topics(first).topics[first].partitions) == 2)
    writer.put(first, ["a"], partition=1)
    writer.put(second, ["b"])
    assert reading.values() == ["a", "b"]
    again = Reading(source(pattern=f"{prefix}.*"), at=reading.at)
    writer.put(second, ["c"])
    assert again.values() == ["c"]


def test_messages_that_retention_deleted_fail_or_are_passed_over_by_choice():
    topic = new_topic()
    Writer().put(topic, ["a", "b", "c"])
    at = Reading(source(topic)).at
    kafka_kit.admin(kafka_kit.address()).delete_records([TopicPartition(topic, 0, 2)])
    until(lambda: Reading(source(topic)).at[f"{topic}/0"] == 2)
    with pytest.raises(PositionLost, match=rf"{topic}', partition 0: wanted is offset 0, available are 2"):
        Reading(source(topic), at=at).rest()
    assert Reading(source(topic, on_lost="reset"), at=at).values() == ["c"]


def test_a_topic_that_was_created_anew_is_told_by_its_id():
    topic = new_topic()
    Writer().put(topic, ["a", "b"])
    reading = Reading(source(topic))
    reset = Reading(source(topic, on_lost="reset"))
    assert reading.values() == reset.values() == ["a", "b"]
    before = reading.at[topic]
    kafka_kit.delete_topic(topic)
    until(lambda: topic not in kafka_kit.admin(kafka_kit.address()).list_topics().topics)
    with pytest.raises(PositionLost, match=f"topic {topic!r}: it was deleted"):
        reading.rest()
    new_topic(name=topic)
    Writer().put(topic, ["c", "d", "e"])
    with pytest.raises(PositionLost, match=f"topic id {re.escape(str(before))}, available are"):
        reading.rest()
    assert reset.values() == ["c", "d", "e"]


def test_the_groups_offsets_follow_completed_checkpoints():
    topic, group = new_topic(), new_topic()
    Writer().put(topic, ["a", "b"])
    reading = Reading(source(topic, group=group))
    assert reading.values() == ["a", "b"]
    reading.planner.completed(reading.at)
    reading.planner.close()
    consumer = Consumer({"bootstrap.servers": kafka_kit.address(), "group.id": group})
    assert consumer.committed([TopicPartition(topic, 0)], timeout=10)[0].offset == 2
    consumer.close()


def test_json_values_become_columns_and_malformed_ones_bad_records_with_their_offset():
    topic = new_topic()
    good = '{"user": "ann", "n": 1, "more": [null]}'
    bad = ["null", "", "{", '{"n": "x"}', "[1]", '{"n": 1} {"n": 2}', '{"n": 1}\n{"n": 2}', None, "{}{}", b"{\xff}"]
    Writer().put(topic, [good, *bad, '{"n": 2}'])
    json = source(topic, value="json", schema="user STRING, n BIGINT", metadata=["offset"])
    rows, found = Reading(json).rest()
    assert rows == [("ann", 1, 0), (None, 2, 1 + len(bad))]
    assert [row.position for row in found] == [str(1 + place) for place in range(len(bad))]
    assert found[3].payload == '{"n": "x"}' and "n" in found[3].reason
    assert {row.split for row in found} == {f"{topic}/0"}


def test_a_source_of_json_travels_to_tasks():
    declared = KafkaSource("127.0.0.1:1", "a", value="json", schema="n BIGINT")
    shipped = cloudpickle.loads(cloudpickle.dumps(declared))
    assert shipped._schema == declared._schema


def test_both_parsers_of_json_give_the_same_rows():
    topic = new_topic()
    texts = [
        '{"a": 1.5, "b": true, "c": "\\u00e9\\n"}',
        ' {"a": 2}'[1:],
        '{"b": null, "c": "x", "d": {"e": [1]}}',
        '{"a": 1e3}',
    ]
    Writer().put(topic, texts)
    settings = {"value": "json", "schema": "a DOUBLE, b BOOLEAN, c STRING"}
    alone, _ = Reading(source(topic, **settings)).rest()
    Writer().put(topic, ["nonsense"])
    beside, bad = Reading(source(topic, **settings)).rest()
    assert alone == beside == [(1.5, True, "é\n"), (2.0, None, None), (None, None, "x"), (1000.0, None, None)]
    assert len(bad) == 1


def test_avro_values_come_as_columns_and_malformed_ones_are_bad_records_with_their_offsets():
    user = {"type": "record", "name": "user", "fields": [{"name": "id", "type": "long"}]}
    topic = new_topic()
    Writer().put(topic, [b"\x00\x00\x00\x00\x07\x02", b"\x00\x00\x00\x00\x08\x02", b"\x00\x00\x00\x00\x07", None])
    reading = Reading(source(topic, value="avro", schema=user, schema_ids={7: user}, metadata=["offset"]))
    rows, bad = reading.rest()
    assert rows == [(1, 0)]
    assert [(row.split, row.position) for row in bad] == [(f"{topic}/0", str(offset)) for offset in (1, 2, 3)]
    assert "id 8" in bad[0].reason
