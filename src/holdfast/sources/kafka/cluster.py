"""Questions of the driver to a Kafka cluster: topics with their ids, and offsets. Each is a single batched request."""

import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

from holdfast.errors import HoldfastError
from holdfast.hidden import chained
from holdfast.sources.kafka.client import ANSWER_S_MAX, client_package, made, translated
from holdfast.sources.kafka.log_check import cut_logs
from holdfast.sources.kafka.positions import UNKNOWN_EPOCH, ReachedPosition, offsets_of, partition_of, split_name


class TopicFacts(NamedTuple):
    """A topic as the cluster knows it. A topic that was deleted and created again has another id."""

    topic_id: str
    partitions: int


class KafkaCluster:
    """A connection to a cluster. Every method may raise `StorageError` if the cluster does not answer, `PositionLost`
    if a topic that is asked for is not there.

    After an error, the client is made anew: the old client would keep asking with the leader epochs that it knew, which
    a restarted broker refuses for minutes.
    """

    def __init__(self, whose: str, settings: Mapping[str, Any]) -> None:
        self._whose = whose
        self._servers = str(settings["bootstrap.servers"])
        self._package = client_package()
        self._settings = dict(settings)
        self._admin = self._client()

    def _client(self) -> Any:
        return made(self._whose, self._package.admin.AdminClient, self._settings)

    def topic_names(self) -> set[str]:
        """Return the names of all topics, internal ones left out."""
        try:
            found = self._admin.list_topics(timeout=ANSWER_S_MAX).topics
        except self._package.KafkaException as error:
            raise self._error(error) from chained(error)
        return {name for name in found if not name.startswith("__")}

    def matching(self, pattern: str) -> set[str]:
        """Return the names of the topics that a regular expression matches completely."""
        return {name for name in self.topic_names() if re.fullmatch(pattern, name)}

    def topics(self, names: Collection[str]) -> dict[str, TopicFacts]:
        """Describe topics; a topic that does not exist is left out."""
        if not names:
            return {}
        package, found = self._package, {}
        asked = package.TopicCollection(sorted(names))
        for name, answer in self._admin.describe_topics(asked, request_timeout=ANSWER_S_MAX).items():
            try:
                described = answer.result()
            except package.KafkaException as error:
                if error.args[0].code() != package.KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise self._error(error) from chained(error)
                continue
            found[name] = TopicFacts(str(described.topic_id), len(described.partitions))
        return found

    def starts(self, splits: Iterable[str]) -> dict[str, int]:
        """Return the earliest offset that each partition still has."""
        return offsets_of(self._offsets(splits, self._package.admin.OffsetSpec.earliest()))

    def ends(self, splits: Iterable[str]) -> dict[str, ReachedPosition]:
        """Return the last stable offset of each partition: all transactions before it have ended."""
        return self._offsets(splits, self._package.admin.OffsetSpec.latest())

    def at_time(self, splits: Iterable[str], time_ms: int) -> dict[str, int]:
        """Return the offset of the first message of that time or later; the end if there is none."""
        splits = list(splits)
        found = offsets_of(self._offsets(splits, self._package.admin.OffsetSpec.for_timestamp(time_ms)))
        without = [split for split, offset in found.items() if offset < 0]
        return found | offsets_of(self.ends(without))

    def cut_logs(self, positions: Mapping[str, ReachedPosition]) -> dict[str, int | None]:
        """Return the partitions whose logs were cut before these positions, even if the logs grew again since; each
        with the offset of the cut, if it is known."""
        return cut_logs(self._whose, self._settings, positions) if positions else {}

    def _offsets(self, splits: Iterable[str], spec: Any) -> dict[str, ReachedPosition]:
        package = self._package
        asked = {package.TopicPartition(*partition_of(split)): spec for split in splits}
        if not asked:
            return {}
        answers = self._admin.list_offsets(
            asked, isolation_level=package.IsolationLevel.READ_COMMITTED, request_timeout=ANSWER_S_MAX
        )
        try:
            found = {split_name(one.topic, one.partition): answer.result() for one, answer in answers.items()}
        except package.KafkaException as error:
            raise self._error(error) from chained(error)
        return {
            split: ReachedPosition(one.offset, UNKNOWN_EPOCH if one.leader_epoch is None else one.leader_epoch)
            for split, one in found.items()
        }

    def _error(self, error: Exception) -> HoldfastError:
        self._admin = self._client()
        return translated(self._whose, self._servers, error)
