"""Spark's side of a streaming DataFrame, without Spark: a query that takes the epochs of its checkpoint."""

import threading
from uuid import uuid4

import pyarrow as pa

SCHEMA = pa.schema([("n", pa.int64())])


class StructType:
    """A schema as Spark gives it."""

    def jsonValue(self):
        return {"type": "struct", "fields": [{"name": "n", "type": "long", "nullable": True, "metadata": {}}]}


class Row(dict):
    """A row as Spark collects it."""

    asDict = dict.copy


class Epoch:
    """The rows of an epoch, in partitions."""

    def __init__(self, partitions):
        self.partitions = partitions
        self.sparkSession = self.conf = self

    def set(self, name, value):
        assert name == "spark.sql.execution.arrow.maxRecordsPerBatch"

    def mapInArrow(self, function, ddl):
        self.results = [
            row
            for rows in self.partitions
            for batch in function(iter([pa.record_batch([pa.array(rows, pa.int64())], schema=SCHEMA)]))
            for row in map(Row, batch.to_pylist())
        ]
        return self

    def collect(self):
        return self.results


class SparkCheckpoint:
    """Spark's logs: the offsets of epochs and the commits, which outlive queries."""

    def __init__(self):
        self.id = uuid4()
        self.epochs = []
        self.committed = 0


class Rows:
    """A streaming DataFrame whose query takes each epoch of its checkpoint from the first that is not committed."""

    isStreaming = True
    schema = StructType()

    def __init__(self, checkpoint):
        self.checkpoint = checkpoint
        self.writeStream = self
        self.starts = 0

    def foreachBatch(self, function):
        self.function = function
        return self

    def queryName(self, name):
        return self

    def option(self, name, value):
        assert (name, value.startswith("file://")) == ("checkpointLocation", True)
        return self

    def trigger(self, **settings):
        self.settings = settings
        return self

    def start(self):
        self.starts += 1
        return RunningQuery(self.checkpoint, self.function, ends="availableNow" in self.settings)


class RunningQuery:
    def __init__(self, checkpoint, function, ends):
        self.id = checkpoint.id
        self._checkpoint, self._function, self._ends = checkpoint, function, ends
        self._error = None
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        try:
            while not self._stopping.wait(0.005):
                number = self._checkpoint.committed
                if number < len(self._checkpoint.epochs):
                    self._function(Epoch(self._checkpoint.epochs[number]), number)
                    self._checkpoint.committed = number + 1
                elif self._ends:
                    return
        except BaseException as error:
            self._error = error

    def awaitTermination(self, seconds):
        self._thread.join(seconds)
        if self._error is not None:
            raise RuntimeError("[STREAM_FAILED]\n\tat java") from self._error
        return not self._thread.is_alive()

    def stop(self):
        self._stopping.set()
        self._thread.join(60)
