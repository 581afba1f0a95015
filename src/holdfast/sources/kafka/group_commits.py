"""Commits of a consumer group's offsets after checkpoints, for tools that show lag. Nothing ever reads them back."""

import threading
from collections.abc import Mapping
from typing import Any

from holdfast.printable import logger
from holdfast.sources.kafka.client import client_package, made
from holdfast.sources.kafka.enumerator import committed_offsets

log = logger(__name__)


class BackgroundGroupCommits:
    """Commits in a thread of its own; if it is slower than checkpoints, only the newest offsets are committed."""

    def __init__(self, whose: str, settings: Mapping[str, Any], group: str) -> None:
        self._whose = whose
        self._settings = {**settings, "group.id": group, "enable.auto.commit": False}
        self._news = threading.Condition()
        self._waiting: Mapping[str, int] | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._run, name="holdfast-kafka-group", daemon=True)
        self._thread.start()

    def commit(self, offsets: Mapping[str, int]) -> None:
        """Note the offsets of a completed checkpoint, and return at once."""
        with self._news:
            self._waiting = dict(offsets)
            self._news.notify()

    def close(self) -> None:
        """Commit the offsets that were noted last, and end."""
        with self._news:
            self._closed = True
            self._news.notify()
        self._thread.join(timeout=5)

    def _run(self) -> None:
        package = client_package()
        consumer = made(self._whose, package.Consumer, self._settings)
        while (offsets := self._next()) is not None:
            try:
                consumer.commit(offsets=committed_offsets(package, offsets), asynchronous=False)
            except package.KafkaException as error:
                log.warning("%s: the group's offsets were not committed: %s", self._whose, error)
        consumer.close()

    def _next(self) -> Mapping[str, int] | None:
        with self._news:
            self._news.wait_for(lambda: self._closed or self._waiting is not None)
            offsets, self._waiting = self._waiting, None
            return offsets
