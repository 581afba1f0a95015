"""Positions whose messages are gone: logs that became shorter, logs whose start moved, topics made anew."""

import pytest
from confluent_kafka import KafkaError, TopicPartition
from confluent_kafka.admin import NewPartitions
from test_sources_kafka import Reading, source

import kafka_kit
from examples.kafka.broker import QUICK_JAVA, Broker
from holdfast.errors import JobRefused, PositionLost
from holdfast.sources.base import SplitRead
from holdfast.sources.kafka import log_check
from holdfast.sources.kafka.client_reader import ClientReader
from holdfast.sources.kafka.kafka_source import KafkaSource
from holdfast.sources.kafka.positions import ReachedPosition, epochs, with_epochs
from holdfast.sources.kafka.queue_reader import QueueReader
from kafka_kit import Writer, new_topic
from waiting import until


def values_of(read_source, read):
    return [value for batch in read_source.read(read) for value in batch.rows.column("value").to_pylist()]


def test_epochs_of_leaders_are_kept_in_a_text_for_each_topic():
    reached = {"a/0": ReachedPosition(5, 3), "a/2": ReachedPosition(9, 12), "b/0": ReachedPosition(1)}
    entries = with_epochs(reached)
    assert entries == {"a:epochs": "3,,12", "b:epochs": ""}
    offsets = {**entries, "a": "id", "a/0": 5}
    assert epochs(offsets) == {"a/0": 3, "a/2": 12}
    assert list(KafkaSource("127.0.0.1:1", "a").positions_of_splits(offsets)) == ["a/0"]


@pytest.mark.parametrize("with_epoch", [True, False])
def test_a_position_behind_the_end_of_its_log_is_lost_or_goes_on_behind_what_was_read(with_epoch):
    topic = new_topic()
    Writer().put(topic, ["a", "b", "c"])
    at = Reading(source(topic)).planner.latest() | {f"{topic}/0": 10}
    if not with_epoch:
        del at[topic + ":epochs"]
    with pytest.raises(PositionLost, match=rf"{topic}', partition 0: wanted is offset 10, but the log was cut short"):
        Reading(source(topic), at=at).rest()
    reset = Reading(source(topic, on_lost="reset"), at=at)
    reset.at = reset.planner.plan(at, reset.planner.latest(), 1, 10**9).to
    assert reset.at[f"{topic}/0"] == (3 if with_epoch else 1), "only the epoch tells where the log was cut"
    Writer().put(topic, ["d"])
    assert reset.values() == (["d"] if with_epoch else ["b", "c", "d"])


def test_a_position_that_no_leader_had_is_lost_though_the_log_has_its_offset():
    topic = new_topic()
    Writer().put(topic, ["a", "b", "c"])
    at = Reading(source(topic)).planner.latest() | {f"{topic}/0": 2, topic + ":epochs": "7"}
    with pytest.raises(PositionLost, match="wanted is offset 2, but the log was cut short"):
        Reading(source(topic), at=at).rest()


def test_positions_are_asked_about_only_if_their_leader_has_changed(monkeypatch):
    topic = new_topic(2)
    Writer().put(topic, ["a", "b"])
    first = Reading(source(topic))
    assert first.values() == ["a", "b"]
    monkeypatch.setattr("holdfast.sources.kafka.cluster.cut_logs", None)
    Writer().put(topic, ["c"], partition=1)
    assert Reading(source(topic), at=first.at).values() == ["c"]


def test_many_positions_are_checked_by_a_single_consumer():
    topic = new_topic(4)
    writer = Writer()
    for partition in range(4):
        writer.put(topic, ["a"] * 3, partition=partition)
    asked = {f"{topic}/{number}": ReachedPosition(offset, 0) for number, offset in enumerate((0, 3, 4, 9))}
    settings = {"bootstrap.servers": kafka_kit.address()}
    assert log_check.cut_logs("check", settings, asked) == {f"{topic}/2": 3, f"{topic}/3": 3}


@pytest.mark.usefixtures("each_kafka_reader")
def test_a_read_whose_messages_are_gone_by_then_fails_with_their_offsets_or_gives_the_others():
    topic = new_topic()
    Writer().put(topic, ["a", "b", "c", "d"])
    read = SplitRead(f"{topic}/0", 0, 4)
    assert values_of(source(topic), read) == ["a", "b", "c", "d"]
    kafka_kit.admin(kafka_kit.address()).delete_records([TopicPartition(topic, 0, 2)])
    until(lambda: Reading(source(topic)).at[f"{topic}/0"] == 2)
    with pytest.raises(PositionLost, match="wanted are offsets 0 to 3, available are 2 to 3: retention"):
        values_of(source(topic), read)
    assert values_of(source(topic, on_lost="reset"), read) == ["c", "d"]


@pytest.mark.usefixtures("each_kafka_reader")
@pytest.mark.parametrize("start", [0, 5])
def test_a_read_to_behind_the_end_of_its_log_fails_or_gives_the_messages_that_are_there(start):
    topic = new_topic()
    Writer().put(topic, ["a", "b"])
    read = SplitRead(f"{topic}/0", start, 7)
    with pytest.raises(
        PositionLost, match=rf"wanted are offsets {min(start, 5) or 2} to 6, available are 0 to 1: the log"
    ):
        values_of(source(topic), read)
    assert values_of(source(topic, on_lost="reset"), read) == ["a", "b"][start:]


def slow_at_first(polled):
    """A way of asking for messages that has none at the first time."""
    waited = [True]
    return lambda *given: [] if waited and waited.pop() else polled(*given)


@pytest.mark.usefixtures("each_kafka_reader")
def test_a_broker_that_is_slow_at_first_loses_no_message_before_the_end_of_its_log(monkeypatch):
    for reader in (ClientReader, QueueReader):
        monkeypatch.setattr(reader, "_polled", slow_at_first(reader._polled))
    topic = new_topic()
    Writer().put(topic, ["a", "b"])
    assert values_of(source(topic, on_lost="reset"), SplitRead(f"{topic}/0", 0, 7)) == ["a", "b"]


class OldError:
    """The broker's answer to a fetch from an earlier position, whose messages are gone."""

    def error(self):
        return KafkaError(KafkaError._AUTO_OFFSET_RESET)


@pytest.mark.parametrize("each_kafka_reader", ["plain"], indirect=True)
@pytest.mark.usefixtures("each_kafka_reader")
def test_an_error_about_an_earlier_position_loses_nothing_unless_it_comes_again_and_again(monkeypatch):
    polled, errors = ClientReader._polled, [OldError()]
    monkeypatch.setattr(ClientReader, "_polled", lambda reader: [errors.pop()] if errors else polled(reader))
    topic = new_topic()
    Writer().put(topic, ["a", "b"])
    read = SplitRead(f"{topic}/0", 0, 2)
    assert values_of(source(topic, on_lost="reset"), read) == ["a", "b"]
    errors.extend([OldError()] * 10)
    with pytest.raises(PositionLost, match="wanted is offset 0"):
        values_of(source(topic, on_lost="reset"), read)


@pytest.mark.usefixtures("each_kafka_reader")
def test_a_tail_of_aborted_messages_is_read_to_its_end():
    topic = new_topic()
    aborted = Writer(transactional=True)
    Writer().put(topic, ["a"])
    aborted.begin()
    aborted.put(topic, ["b", "c"])
    aborted.abort()
    reading = Reading(source(topic))
    assert reading.values() == ["a"] and reading.at[f"{topic}/0"] == 4
    Writer().put(topic, ["d"])
    assert reading.values() == ["d"]


def test_a_topic_made_anew_with_fewer_partitions_leaves_no_positions_of_the_others():
    topic = new_topic(2)
    for partition in range(2):
        Writer().put(topic, ["a", "b"], partition=partition)
    reading = Reading(source(topic, on_lost="reset"))
    assert len(reading.values()) == 4
    kafka_kit.delete_topic(topic)
    until(lambda: topic not in kafka_kit.admin(kafka_kit.address()).list_topics().topics)
    new_topic(name=topic)
    Writer().put(topic, ["c"])
    reading.clock.advance(10)
    latest = reading.planner.latest()
    reading.at = reading.planner.plan(reading.at, latest, 100, 10**9).to
    assert f"{topic}/1" not in reading.at and reading.at[f"{topic}/0"] == 1
    kafka_kit.admin(kafka_kit.address()).create_partitions([NewPartitions(topic, 2)])[topic].result(60)
    until(lambda: len(kafka_kit.admin(kafka_kit.address()).list_topics(topic).topics[topic].partitions) == 2)
    Writer().put(topic, ["d", "e"], partition=1)
    assert reading.values() == ["d", "e"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"other/0": 1}, "positions of topic 'other'"),
        ({"TOPIC/0": -1}, "'TOPIC/0': -1"),
        ({"TOPIC/0": "1"}, "'TOPIC/0': '1'"),
        ({"TOPIC/0": True}, "'TOPIC/0': True"),
        ({"TOPIC/x": 1}, "'TOPIC/x': 1"),
        ({"TOPIC": 5}, "'TOPIC': 5"),
        ({"TOPIC:epochs": "a"}, "'TOPIC:epochs': 'a'"),
    ],
)
def test_stored_positions_that_do_not_fit_the_source_are_refused_by_name(changes, said):
    topic = new_topic()
    at = Reading(source(topic)).at | {name.replace("TOPIC", topic): value for name, value in changes.items()}
    with pytest.raises(JobRefused, match=said.replace("TOPIC", topic)):
        Reading(source(topic), at=at)


def cut_log(broker: Broker, topic: str) -> None:
    """Have a broker lose a partition's log, as with its disk."""
    broker.shut_down()
    for path in (broker.folder / "data" / f"{topic}-0").iterdir():
        if path.suffix in (".log", ".index", ".timeindex", ".snapshot") or path.name == "leader-epoch-checkpoint":
            path.unlink()
    for path in (broker.folder / "data").glob("*offset-checkpoint"):
        path.write_text("0\n0\n")
    broker.start()


@pytest.mark.long
@pytest.mark.parametrize("new", [3, 15])
def test_a_log_that_a_broker_lost_and_wrote_anew_is_told_while_the_query_runs_and_after_a_restart(tmp_path, new):
    broker = Broker(tmp_path, QUICK_JAVA).start()
    try:
        topic = new_topic(servers=broker.address)
        made = {on_lost: source_at(broker, topic, on_lost) for on_lost in ("fail", "reset")}
        Writer(servers=broker.address).put(topic, [f"old {n}" for n in range(10)])
        running = {on_lost: Reading(each) for on_lost, each in made.items()}
        assert all(len(each.values()) == 10 for each in running.values())
        cut_log(broker, topic)
        fresh = [f"new {n:02}" for n in range(new)]
        Writer(servers=broker.address).put(topic, fresh)
        for fails in (running["fail"], Reading(made["fail"], at=running["fail"].at)):
            with pytest.raises(PositionLost, match="wanted is offset 10, but the log was cut short at 0"):
                fails.rest()
        assert Reading(made["reset"], at=running["reset"].at).values() == fresh
        assert running["reset"].values() == fresh
    finally:
        broker.stop()


def source_at(broker: Broker, topic: str, on_lost: str):
    return KafkaSource(broker.address, topic, value="string", metadata=[], on_lost=on_lost)
