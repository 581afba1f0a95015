"""The testing kit: it runs a function or a small pipeline in this process, without Spark, in milliseconds.

source = TestSource([[{"k": 1}], Abort(), [{"k": 1}], Eof()], "k BIGINT")
job = hf.Job(None, name="test", storage="memory://test")
...
holdfast.testing.run(job)

Files in reading order: `run`, `local`, `source`, `stores`, `scheduler`, `usual_jobs`.
"""

from holdfast.clock import ManualClock
from holdfast.testing.run import run, start
from holdfast.testing.source import Abort, Boundaries, Eof, TestSource
from holdfast.testing.stores import Fault, FaultyStore, SlowStore, ThrottledStore, seeded_faults

__all__ = [
    "Abort",
    "Boundaries",
    "Eof",
    "Fault",
    "FaultyStore",
    "ManualClock",
    "SlowStore",
    "TestSource",
    "ThrottledStore",
    "run",
    "seeded_faults",
    "start",
]
