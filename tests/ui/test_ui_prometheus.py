"""Labels of metrics have texts from outside in them: the names of files, topics and partitions."""

from types import SimpleNamespace
from typing import cast

from prometheus_client import CollectorRegistry, generate_latest

from holdfast.formats.store_use import StoreUse
from holdfast.observe.metrics import Picture
from holdfast.observe.view import JobView
from holdfast.store_prices import StorePrices
from holdfast.ui.prometheus import JobCollector


def test_control_characters_and_surrogates_in_labels_are_shown_as_escapes() -> None:
    split = "a\x1b]0;title\x07\r\u202e\ud800 b\n"
    view = SimpleNamespace(
        name="j\x1b[2J",
        metrics=Picture(),
        lag={"s": {split: 1}},
        source_watermarks={"s\x9b": 5},
        operator_watermarks={},
        store_use=StoreUse(1.0, 0, 0, ()),
        prices=StorePrices(),
    )
    registry = CollectorRegistry()
    registry.register(JobCollector(lambda: cast(JobView, view)))
    text = generate_latest(registry).decode()
    assert all(each.isprintable() or each == "\n" for each in text)
    assert r'split="a\\x1b]0;title\\x07\\r\\u202e\\ud800 b\n"' in text
