"""The host of a job's processes and tasks: a classic session (`classic_host`) or Spark Connect (`connect_host`).

Everything above knows only this interface. A task's body is called with the task's bytes and yields bytes. It is sent
by cloudpickle, and must not need Holdfast on the executor unless it is one of Holdfast's own.
"""

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.ids import Role
from holdfast.sources.spark_stream.epoch_calls import EpochCalls

TaskBody = Callable[[bytes], Iterable[bytes]]


@dataclass(frozen=True)
class SparkJob:
    """The name of Spark jobs: a group, by which they are cancelled, and a description for Spark's UI."""

    group: str
    description: str
    stays: Role | None = None
    """The role of the long-running process that the job runs, if any. Its threads are not interrupted if Spark allows
    that choice: if a thread is interrupted while its Python worker connects, Spark restarts the daemon of all Python
    workers, which kills every long-running process there."""


class Shipped(Protocol):
    """Bytes that are sent to executors once, and not with each task."""

    @property
    def value(self) -> bytes:
        """Return the bytes, in a task."""
        ...

    def unpersist(self) -> None:
        """Free the bytes on the executors."""
        ...


class SparkHost(Protocol):
    """A Spark application, used through the job's own session. All calls may be made from any thread."""

    session: Any
    """The session for DataFrames that users declare."""
    application: str
    """Id of the Spark application."""
    master: str

    def setting(self, name: str) -> str | None:
        """Return a setting of the application; None if it is not set."""
        ...

    def address(self) -> str:
        """Address of this machine at which executors reach the program."""
        ...

    def bind_address(self) -> str:
        """The address of this machine on which the program listens; empty: `address()`."""
        ...

    def has_ended(self) -> bool:
        """True if the session was stopped, by anyone, or its application is gone."""
        ...

    def slots(self) -> int:
        """Number of tasks that Spark can run at once now, on all executors together."""
        ...

    def asking(self, slots: int, seconds: float) -> AbstractContextManager[None]:
        """Have tasks wait for so many slots inside the context, at most `seconds` each, so that a cluster manager that
        starts executors on demand starts them, and keeps them."""
        ...

    def ask_for(self, slots: int) -> None:
        """Ask such a cluster manager, beside a query, for executors until there are so many slots; return at once."""
        ...

    def executors(self) -> frozenset[str] | None:
        """Return a name for each executor, which changes when the executor restarts; None if Spark does not report
        them."""
        ...

    def ship(self, data: bytes) -> Shipped:
        """Make bytes ready for tasks."""
        ...

    def described(self, job: SparkJob) -> AbstractContextManager[None]:
        """Name the Spark jobs of this thread inside the context. Afterwards the thread has its previous names again."""
        ...

    def run(self, tasks: Sequence[bytes], body: TaskBody) -> list[bytes]:
        """Run a task for each of `tasks`, and return everything that `body` yielded, in the order of tasks. Blocks
        while they run. Raises Spark's errors."""
        ...

    def has_begun(self, group: str) -> bool:
        """True if a job of that group has reached Spark."""
        ...

    def registered(self, group: str) -> None:
        """Note that the long-running process of that group has registered, so its task runs."""
        ...

    def failure(self, group: str) -> str | None:
        """Return Spark's message about a failed task of that group, even if Spark tries the task again; None if there
        is none, or if Spark does not report it."""
        ...

    def cancel(self, group: str) -> None:
        """Cancel the jobs of a group. Raises nothing."""
        ...

    def lanes(self, count: int) -> Any:
        """Make a DataFrame with a partition for each of `count` units of work. Its rows mean nothing."""
        ...

    def own(self, rows: Any) -> Any:
        """Return the same rows as a DataFrame of the session in which the job's Spark jobs run."""
        ...

    def check_transform(self, name: str, stream: Any, rows: Any) -> None:
        """Refuse a transform of `stream`, made by `lanes`, into `rows` if a batch of it cannot be repeated, or does not
        keep its partitions. Raises `JobRefused`."""
        ...

    def epoch_calls(self) -> EpochCalls:
        """Make the way in which the query of a streaming DataFrame calls this program."""
        ...

    def close(self) -> None:
        """Release the job's session."""
        ...
