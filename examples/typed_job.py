"""A small job with types throughout, which `make check` reads with mypy and with pyright as users' editors do."""

from collections.abc import Iterator
from typing import Any

import pyarrow as pa

import holdfast as hf
from holdfast.testing import TestSource, run


class Streak(hf.ProcessFunction):
    """Gives a row when a sensor is above its limit three times in a row."""

    above = hf.ValueState(pa.int64(), default=0)

    def process(self, row: Any, ctx: Any) -> Iterator[dict[str, Any]]:
        streak = self.above.value() + 1 if row.value > 100 else 0
        self.above.update(streak)
        if streak == 3:
            yield {"sensor": ctx.key, "value": row.value}


def alarms(values: list[int]) -> list[dict[str, Any]]:
    job = hf.Job(None, name="alarms", storage="memory://typed", checkpoint=hf.CheckpointConfig(trigger=hf.every("1s")))
    sink = hf.MemorySink()
    rows = [{"sensor": 1, "value": value} for value in values]
    stream: hf.Stream = job.read(TestSource([rows], "sensor INT, value INT"))
    keyed: hf.KeyedStream = stream.key_by("sensor")
    keyed.process(Streak(), "sensor INT, value INT").write(sink)
    query: hf.Query = run(job)
    assert query.totals.rows == len(values)
    return sink.rows()


if __name__ == "__main__":
    print(alarms([90, 110, 120, 130, 140]))
