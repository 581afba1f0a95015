"""Rules about retained checkpoints, savepoints and changed settings, each broken in a single place."""

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest import mock

import msgspec

from holdfast.checkpoint.coordinator import Coordinator
from holdfast.checkpoint.records import RetainedRecords

Mutation = Callable[[], AbstractContextManager[Any]]


def _holds_nothing() -> AbstractContextManager[Any]:
    """A savepoint's record may expire, and its objects go, while they are copied."""

    def hold(self: RetainedRecords) -> Any:
        return self.newest

    return mock.patch.multiple(RetainedRecords, hold_newest=hold, let_go=lambda self, number: None)


def _does_not_say_what_is_held() -> AbstractContextManager[Any]:
    before = RetainedRecords.retained

    def retained(self: RetainedRecords, count: int, since_s: float) -> Any:
        holds = {number: record.holds for number, record in self._records.items()}
        for record in self._records.values():
            record.holds = 0
        found = before(self, count, since_s)
        for number, record in self._records.items():
            record.holds = holds[number]
        return found

    return mock.patch.object(RetainedRecords, "retained", retained)


def _forgets_what_earlier_starts_retained() -> AbstractContextManager[Any]:
    return mock.patch("holdfast.jobmaster.checkpoints.found._older", lambda store, taken: iter(()))


def _cleans_up_what_is_retained() -> AbstractContextManager[Any]:
    return mock.patch("holdfast.cleanup.observation._kept", lambda *arguments: iter(()))


def _forgets_changed_settings_at_a_failover() -> AbstractContextManager[Any]:
    begin, before = Coordinator.__init__, Coordinator._on_failover_began

    def init(self: Any, config: Any, *others: Any) -> None:
        begin(self, config, *others)
        self.config_at_start = config

    def on_failover_began(self: Any, event: Any) -> None:
        before(self, event)
        self._shared.config = self.config_at_start

    return mock.patch.multiple(Coordinator, __init__=init, _on_failover_began=on_failover_began)


def _ignores_changed_settings() -> AbstractContextManager[Any]:
    return mock.patch.object(Coordinator, "_on_config_changed", lambda self, event: None)


def _drops_what_is_unpublished_when_it_goes_back() -> AbstractContextManager[Any]:
    def agreed(number: Any, newest: Any, wanted: Any, record: Any, sinks: Any, publish_again: Any) -> Any:
        return msgspec.structs.replace(record, groups={})

    with ExitStack() as stack:
        for place in ("going_back", "start"):
            stack.enter_context(mock.patch(f"holdfast.jobmaster.starting.{place}.agreed", agreed))
        return stack.pop_all()


KEEPING: dict[str, Mutation] = {
    "a savepoint holds nothing": _holds_nothing,
    "records do not say what is held": _does_not_say_what_is_held,
    "a start forgets what earlier ones retained": _forgets_what_earlier_starts_retained,
    "clean-up takes what is retained": _cleans_up_what_is_retained,
    "a failover forgets changed settings": _forgets_changed_settings_at_a_failover,
    "changed settings are ignored": _ignores_changed_settings,
    "a start that goes back drops what is unpublished": _drops_what_is_unpublished_when_it_goes_back,
}
"""Each shows only in jobs that keep checkpoints beside the newest one (`simulation_settings_calm`)."""
