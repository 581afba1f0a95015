"""A running job's requests to its storage, from its metrics. Pure.

    uploads: attempts and sizes by lane ─┐
    counted stores: all puts, reads, … ──┴──► lanes; puts outside of them are "other"

The JobMaster's counts contain those that senders and short tasks report with their units, and that all processes report
with their heartbeats; those of deployments come with commits (`storage.counted`).
"""

from holdfast.formats.store_use import LaneUse, StoreUse
from holdfast.observe.metrics import Distribution, Picture

LANES = ("log", "materialization", "gathered", "committables", "record", "source")
"""Lanes of uploads, by the beginning of their metrics' names."""
OTHERS = (
    ("reads", "get", "storeGets", "storeGetBytes"),
    ("listings", "list", "storeLists", ""),
    ("deletions", "delete", "storeDeletes", ""),
)
"""Other lanes: name, kind, and the metrics of their requests and bytes."""


def store_use(picture: Picture, seconds: float) -> StoreUse:
    """The requests of the `seconds` that a start has run for."""
    values, none = picture.values, Distribution({}, 0.0, 0.0, 0.0)
    lanes: list[LaneUse] = []
    for lane in LANES:
        attempts = picture.distributions.get(f"{lane}UploadAttempts", none)
        sizes = picture.distributions.get("uploadSizes" if lane == "log" else f"{lane}UploadSizes", none)
        lanes.append(LaneUse(lane, "put", int(attempts.sum), int(sizes.sum)))
    lanes.append(LaneUse("senders", "put", int(values.get("senderPuts", 0)), int(values.get("senderPutBytes", 0))))
    puts = int(values.get("storePuts", 0)) - sum(each.requests for each in lanes)
    size_bytes = int(values.get("storePutBytes", 0)) - sum(each.size_bytes for each in lanes)
    lanes.append(LaneUse("other", "put", max(0, puts), max(0, size_bytes)))
    lanes += [
        LaneUse(lane, kind, int(values.get(requests, 0)), int(values.get(sizes, 0)))
        for lane, kind, requests, sizes in OTHERS
    ]
    return StoreUse(
        seconds,
        int(values.get("numberOfCompletedCheckpoints", 0)),
        int(values.get("lastCheckpointFullSize", 0)),
        tuple(each for each in lanes if each.requests),
    )
