"""Nexmark's events as Parquet files, from a seed, in the proportions and with the hot keys of the original generator.

    of 50 events:  1 person, 3 auctions, 46 bids;  10,000 events a second of event time, in order
    bids:          half of them on the hot auction (the last multiple of 100), three quarters by the hot bidder
    auctions:      three quarters of the hot seller; the others of the last 1,000 persons

Each file holds the events of `EVENTS_PER_FILE` numbers, so that files of the same number are of the same time.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

EVENTS_PER_FILE = 250_000
EVENTS_PER_S = 10_000
BEGIN_US = 1_436_918_400_000_000
TIME = pa.timestamp("us", "UTC")
KINDS = ("persons", "auctions", "bids")

OF_PERSONS, OF_AUCTIONS, OF_ALL = 1, 3, 50
FIRST_ID, FIRST_CATEGORY = 1_000, 10
HOT_STEP, ACTIVE_PERSONS, OPEN_AUCTIONS, PERSONS_AHEAD, AUCTIONS_AHEAD = 100, 1_000, 100, 10, 10
CHANNELS = 10_000
SIDE_KEYS = 10_000
HOT_CHANNELS = ("Google", "Facebook", "Baidu", "Apple")
STATES = ("AZ", "CA", "ID", "OR", "WA", "WY")
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]


def write_events(folder: Path, events: int, seed: int = 0, events_per_file: int = EVENTS_PER_FILE) -> None:
    """Write the first `events` events below `folder`: `persons/`, `auctions/`, `bids/` and `side/`."""
    for kind in KINDS:
        (folder / kind).mkdir(parents=True)
    (folder / "side").mkdir()
    pq.write_table(side(), folder / "side" / "0000.parquet")
    for place, start in enumerate(range(0, events, events_per_file)):
        chance = np.random.default_rng((seed, place))
        numbers = np.arange(start, min(events, start + events_per_file))
        offsets = numbers % OF_ALL
        chosen = {
            "persons": numbers[offsets < OF_PERSONS],
            "auctions": numbers[(offsets >= OF_PERSONS) & (offsets < OF_PERSONS + OF_AUCTIONS)],
            "bids": numbers[offsets >= OF_PERSONS + OF_AUCTIONS],
        }
        for kind, table in (
            ("persons", persons(chosen["persons"], chance)),
            ("auctions", auctions(chosen["auctions"], chance)),
            ("bids", bids(chosen["bids"], chance)),
        ):
            pq.write_table(table, folder / kind / f"{place:04}.parquet")


def side() -> pa.Table:
    """Return the table at the side of the bids: a value for each key, from before the first event on."""
    keys = np.arange(SIDE_KEYS)
    values = pc.binary_join_element_wise("value", pa.array(keys).cast(pa.string()), "-")
    return pa.table({"key": keys, "value": values, "at": pa.array(np.full(SIDE_KEYS, BEGIN_US - 1), TIME)})


def persons(numbers: Any, chance: np.random.Generator) -> pa.Table:
    """The events of these numbers as persons."""
    rows = len(numbers)
    names = _joined(" ", _picked(FIRST_NAMES, rows, chance), _picked(LAST_NAMES, rows, chance))
    words = _words(chance)
    mail = _joined("", _picked(words, rows, chance), "@", _picked(words, rows, chance), ".com")
    card = _joined(" ", *(_picked([f"{number:04}" for number in range(10_000)], rows, chance) for _ in range(4)))
    return pa.table(
        {
            "id": FIRST_ID + _last_person(numbers),
            "name": names,
            "email_address": mail,
            "credit_card": card,
            "city": _picked(CITIES, rows, chance),
            "state": _picked(STATES, rows, chance),
            "date_time": _times(numbers),
            "extra": _extra(rows, 60, 100, chance),
        }
    )


def auctions(numbers: Any, chance: np.random.Generator) -> pa.Table:
    """The events of these numbers as auctions."""
    rows = len(numbers)
    last = _last_person(numbers)
    seller = np.where(chance.integers(0, 4, rows) > 0, last // HOT_STEP * HOT_STEP, _any_person(last, chance))
    initial = _prices(rows, chance)
    open_ms = OPEN_AUCTIONS * OF_ALL // OF_AUCTIONS * 1_000 // EVENTS_PER_S
    expires_us = _micros(numbers) + 1_000 * (1 + chance.integers(0, 2 * open_ms, rows))
    return pa.table(
        {
            "id": FIRST_ID + _last_auction(numbers),
            "item_name": _picked(_words(chance), rows, chance),
            "description": _extra(rows, 40, 100, chance),
            "initial_bid": initial,
            "reserve": initial + _prices(rows, chance),
            "date_time": _times(numbers),
            "expires": pa.array(expires_us, TIME),
            "seller": FIRST_ID + seller,
            "category": FIRST_CATEGORY + chance.integers(0, 5, rows),
            "extra": _extra(rows, 200, 400, chance),
        }
    )


def bids(numbers: Any, chance: np.random.Generator) -> pa.Table:
    """The events of these numbers as bids."""
    rows = len(numbers)
    last, person = _last_auction(numbers), _last_person(numbers)
    least = np.maximum(last - OPEN_AUCTIONS, 0)
    other = least + (chance.random(rows) * (last - least + 1 + AUCTIONS_AHEAD)).astype(np.int64)
    auction = np.where(chance.integers(0, 2, rows) > 0, last // HOT_STEP * HOT_STEP, other)
    bidder = np.where(chance.integers(0, 4, rows) > 0, person // HOT_STEP * HOT_STEP + 1, _any_person(person, chance))
    names = [*HOT_CHANNELS, *(f"channel-{number}" for number in range(CHANNELS))]
    words = _words(chance)
    urls = [
        f"https://www.nexmark.com/{'/'.join(words[each] for each in chance.integers(0, len(words), 3))}/item.htm"
        + "?query=1"
        + ("" if number < len(HOT_CHANNELS) else f"&channel_id={number - len(HOT_CHANNELS)}")
        for number in range(len(names))
    ]
    hot = chance.integers(0, 2, rows) > 0
    channel = np.where(
        hot, chance.integers(0, len(HOT_CHANNELS), rows), len(HOT_CHANNELS) + chance.integers(0, CHANNELS, rows)
    )
    return pa.table(
        {
            "auction": FIRST_ID + auction,
            "bidder": FIRST_ID + bidder,
            "price": _prices(rows, chance),
            "channel": pa.array(names).take(pa.array(channel)),
            "url": pa.array(urls).take(pa.array(channel)),
            "date_time": _times(numbers),
            "extra": _extra(rows, 54, 82, chance),
        }
    )


def _last_person(numbers: Any) -> Any:
    """The number of the last person up to each event."""
    return numbers // OF_ALL


def _last_auction(numbers: Any) -> Any:
    """The number of the last auction up to each event; 0 before the first."""
    of_epoch = np.minimum(numbers % OF_ALL - OF_PERSONS, OF_AUCTIONS - 1)
    return np.maximum(numbers // OF_ALL * OF_AUCTIONS + of_epoch, 0)


def _any_person(last: Any, chance: np.random.Generator) -> Any:
    """Draw a recent person, or a person that is not there yet."""
    active = np.minimum(last + 1, ACTIVE_PERSONS)
    return last + 1 - active + (chance.random(len(last)) * (active + PERSONS_AHEAD)).astype(np.int64)


def _micros(numbers: Any) -> Any:
    return BEGIN_US + numbers * (1_000_000 // EVENTS_PER_S)


def _times(numbers: Any) -> pa.Array:
    return pa.array(_micros(numbers), TIME)


def _prices(rows: int, chance: np.random.Generator) -> Any:
    return np.round(np.power(10.0, chance.random(rows) * 6) * 100).astype(np.int64)


def _words(chance: np.random.Generator) -> list[str]:
    letters = chance.integers(97, 123, (1_000, 6), dtype=np.uint8)
    return [word.tobytes().decode() for word in letters]


def _picked(values: Any, rows: int, chance: np.random.Generator) -> pa.Array:
    return pa.array(values).take(pa.array(chance.integers(0, len(values), rows)))


def _joined(separator: str, *parts: Any) -> pa.Array:
    return pc.binary_join_element_wise(*parts, separator)


def _extra(rows: int, least: int, most: int, chance: np.random.Generator) -> pa.Array:
    """Random small letters, that rows have the size of the original's."""
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(chance.integers(least, most, rows), out=offsets[1:])
    letters = chance.integers(97, 123, int(offsets[-1]), dtype=np.uint8)
    return pa.StringArray.from_buffers(rows, pa.py_buffer(offsets), pa.py_buffer(letters))
