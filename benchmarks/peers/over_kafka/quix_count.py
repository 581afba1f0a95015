"""The count in Quix Streams, exactly once from end to end. Arguments: the broker's address and a folder."""

import sys

from quixstreams import Application

SERVERS, FOLDER = sys.argv[1:]
app = Application(
    broker_address=SERVERS,
    consumer_group="counts",
    state_dir=f"{FOLDER}/state",
    auto_offset_reset="earliest",
    commit_interval=0.1,
    processing_guarantee="exactly-once",
    loglevel="ERROR",
    consumer_extra_config={"session.timeout.ms": 6000},
)


def count(row, state):
    number = state.get("n", 0) + 1
    state.set("n", number)
    return {"k": row["k"], "n": number, "at": row["at"]}


counts = app.dataframe(app.topic("in", value_deserializer="json")).apply(count, stateful=True)
counts.to_topic(app.topic("out", value_serializer="json"))
app.run()
