"""Requests to the storage by lane, and their price."""

import pytest

import holdfast as hf
from holdfast.errors import SettingsError
from holdfast.formats.store_use import LaneRates, LaneUse, StoreUse, rates
from holdfast.metrics import Histogram
from holdfast.observe.metrics import picture
from holdfast.observe.store_requests import store_use

PRICES = hf.StorePrices(per_1000_puts=5.0, per_1000_gets=1.0, per_gb_month=73.0)


def measured(name: str, *values: float) -> dict[str, float]:
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    return histogram.values(name)


def test_uploads_have_lanes_and_all_other_puts_are_one() -> None:
    own = {"storePuts": 7.0, "storePutBytes": 1000.0, "storeLists": 2.0, "numberOfCompletedCheckpoints": 3.0}
    own |= {"senderPuts": 2.0, "senderPutBytes": 250.0}
    own |= measured("recordUploadAttempts", 1, 2) | measured("recordUploadSizes", 100, 100)
    task_manager = {"storePuts": 2.0, "storePutBytes": 300.0, "storeGets": 5.0, "storeGetBytes": 50.0}
    task_manager |= measured("logUploadAttempts", 1) | measured("uploadSizes", 200)
    found = store_use(picture([({}, task_manager)], own), 60.0)
    assert found == StoreUse(
        60.0,
        3,
        0,
        (
            LaneUse("log", "put", 1, 200),
            LaneUse("record", "put", 3, 200),
            LaneUse("senders", "put", 2, 250),
            LaneUse("other", "put", 3, 650),
            LaneUse("reads", "get", 5, 50),
            LaneUse("listings", "list", 2, 0),
        ),
    )


def test_rates_are_by_hour_and_checkpoint_and_the_last_is_of_all_lanes_with_the_price_of_the_bytes_that_are_kept() -> (
    None
):
    lanes = (LaneUse("record", "put", 20, 2000), LaneUse("reads", "get", 10, 0), LaneUse("deletions", "delete", 5, 0))
    found = list(rates(StoreUse(1800.0, 10, 2_000_000_000, lanes), PRICES))
    assert found == [
        LaneRates("record", "put", 40.0, 4000.0, 2.0, 200.0, pytest.approx(0.2)),
        LaneRates("reads", "get", 20.0, 0.0, 1.0, 0.0, pytest.approx(0.02)),
        LaneRates("deletions", "delete", 10.0, 0.0, 0.5, 0.0, 0.0),
        LaneRates("all", "", 70.0, 4000.0, 3.5, 200.0, pytest.approx(0.22 + 0.2)),
    ]


def test_before_the_first_checkpoint_nothing_is_said_of_checkpoints() -> None:
    found = next(rates(StoreUse(0.0, 0, 0, (LaneUse("record", "put", 1, 1),)), PRICES))
    assert (found.requests_per_checkpoint, found.bytes_per_checkpoint, found.requests_per_hour) == (None, None, 3600.0)


@pytest.mark.parametrize(
    "wrong", [{"per_1000_puts": -1}, {"per_1000_gets": "1"}, {"per_gb_month": float("nan")}, {"currency": ""}]
)
def test_a_price_that_is_none_is_refused_by_name(wrong: dict[str, object]) -> None:
    with pytest.raises(SettingsError, match=next(iter(wrong))):
        hf.StorePrices(**wrong)  # type: ignore[arg-type]
