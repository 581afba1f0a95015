"""The count in Bytewax, with recovery; its Kafka sink may write rows twice. Arguments: the broker's address, a folder.

Bytewax keeps state once in an epoch. Output does not wait for the end of its epoch.
"""

import json
import sys
from datetime import timedelta
from pathlib import Path

import bytewax.operators as op
from bytewax.connectors.kafka import KafkaSink, KafkaSinkMessage, KafkaSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.testing import cluster_main

SERVERS, FOLDER = sys.argv[1:]
state = Path(FOLDER, "state")
if not state.exists():
    state.mkdir(parents=True)
    init_db_dir(state, 1)


def keyed(message):
    row = json.loads(message.value)
    return str(row["k"]), row["at"]


def count(before, at):
    number = (before or 0) + 1
    return number, (number, at)


def message_of(keyed_count):
    key, (number, at) = keyed_count
    return KafkaSinkMessage(key.encode(), json.dumps({"k": int(key), "n": number, "at": at}).encode())


flow = Dataflow("counts")
rows = op.map("keyed", op.input("in", flow, KafkaSource([SERVERS], ["in"], batch_size=100)), keyed)
counts = op.stateful_map("count", rows, count)
op.output("out", op.map("messages", counts, message_of), KafkaSink([SERVERS], "out", add_config={"linger.ms": "1"}))
recovery = RecoveryConfig(str(state))
cluster_main(flow, [], 0, worker_count_per_proc=2, epoch_interval=timedelta(seconds=0.1), recovery_config=recovery)
