"""The log of the JobMaster's loops: bounded, of plain values, and printed where rules are broken."""

from dataclasses import dataclass, field

import pytest

from holdfast.observe.event_log import ENTRIES_MAX, TEXT_MAX, EventLog, ObservedRules


@dataclass(frozen=True)
class Asked:
    number: int
    names: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class LoopTick:
    now_s: float


@dataclass(frozen=True)
class Answer:
    text: str


class Answering:
    """Rules that answer each event, and are broken after the number 3."""

    def __init__(self) -> None:
        self.last = 0

    def handle(self, event: Asked | LoopTick) -> list[Answer]:
        if isinstance(event, LoopTick):
            return []
        self.last = event.number
        return [Answer(f"answer {event.number}")]

    def validate(self) -> None:
        assert self.last != 3, "the number is 3"


def observed() -> tuple[EventLog, ObservedRules[Asked | LoopTick, Answer]]:
    log = EventLog(lambda: 12.0)
    return log, ObservedRules("checkpoints", Answering(), log)


def test_an_event_and_its_commands_are_noted_in_order_with_their_plain_values_alone() -> None:
    log, rules = observed()
    assert rules.handle(Asked(1, ["a", "b"])) == [Answer("answer 1")]
    rules.handle(LoopTick(5.0))
    assert [str(entry) for entry in log.recent()] == [
        "checkpoints <- Asked(number=1)",
        "checkpoints -> Answer(text=answer 1)",
    ]
    assert {entry.at_s for entry in log.recent()} == {12.0}


def test_the_log_is_bounded_in_entries_and_in_the_length_of_a_value() -> None:
    log, rules = observed()
    for number in range(10, 10 + ENTRIES_MAX):
        rules.handle(Asked(number))
    assert len(log.recent()) == ENTRIES_MAX
    log.command("checkpoints", Answer("x" * 10_000))
    assert len(log.recent()[-1].values["text"]) == TEXT_MAX


def test_broken_rules_are_reported_with_the_last_events_and_commands() -> None:
    _, rules = observed()
    rules.handle(Asked(2))
    rules.validate()
    rules.handle(Asked(3))
    with pytest.raises(AssertionError) as broken:
        rules.validate()
    text = str(broken.value)
    assert text.startswith("the number is 3")
    assert "checkpoints <- Asked(number=2)" in text
    assert "checkpoints -> Answer(text=answer 3)" in text
