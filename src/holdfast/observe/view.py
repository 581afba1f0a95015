"""A running job at a certain time, as a single immutable value.

    loops, batches, checkpoints, processes ──JobMaster──► JobView ──► Query, Prometheus, the page, `holdfast top`

Every display of a job reads a `JobView`, so that two displays of the same moment never disagree. A view costs the job
nothing until somebody asks for it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from holdfast.availability import Refusal, listed
from holdfast.formats.history import CheckpointStats
from holdfast.formats.history import LostRows as LostRows
from holdfast.formats.history import SavepointStats as SavepointStats
from holdfast.formats.store_use import StoreUse
from holdfast.graph.program import Leg, LegOutput, OperatorTarget, Program, SourceOrigin
from holdfast.ids import Epoch, Incarnation
from holdfast.observe.event_log import LoggedEvent
from holdfast.observe.metrics import Picture
from holdfast.observe.store_requests import store_use
from holdfast.quantities import size_text
from holdfast.sources.bad_reasons import BadReason
from holdfast.store_prices import StorePrices

SPLITS_SHOWN_MAX = 3
"""Bound on the failing splits that a message names."""


@dataclass(frozen=True)
class GraphEdge:
    """A path of rows between two nodes, which are named by kind and name, for example "source/clicks"."""

    origin: str
    target: str
    in_python: bool
    """False if the rows of this edge pass through Spark's JVM."""
    steps: tuple[str, ...] = ()
    """The stateless steps on the path, as declared: `map_batches`, `select`, `where`, `transform`."""


@dataclass(frozen=True)
class JobGraph:
    """The pipeline of a job: the names of its nodes in order of declaration, and the paths between them."""

    sources: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    sinks: tuple[str, ...] = ()
    edges: tuple[GraphEdge, ...] = ()


@dataclass(frozen=True)
class FollowerView:
    """Progress of a standby that follows the logs of places (`standby_state`).

    `number`: the record that all followed places have reached; None: none yet. `followed`: the number of places whose
    state the standby has. The remaining fields count the checkpoints that it has yet to apply, their new bytes, and the
    time since the first of them.
    """

    places: tuple[int, ...]
    number: int | None
    followed: int
    checkpoints_behind: int
    bytes_behind: int
    seconds_behind: float
    bytes_read: int
    memory_bytes: int
    trouble: str
    """The reason why it follows fewer places than it should; empty if there is none."""


@dataclass(frozen=True)
class ProcessView:
    """A TaskManager or sender that is in service."""

    role: str
    number: int
    incarnation: Incarnation
    address: str
    metrics: Mapping[str, float] = field(default_factory=dict)
    """The last reported metrics of a TaskManager; senders and standbys report none."""
    is_standby: bool = False
    """True for a TaskManager that holds no place, and takes over the place of a lost TaskManager."""
    follower: FollowerView | None = None
    """The progress of a standby that has state."""
    leaving: str = ""
    """The reason why its machine will be removed; empty if it stays."""


class Restoring(NamedTuple):
    """Progress of a restore in all TaskManagers that take part: subtasks, restored subtasks, bytes read."""

    subtasks: int
    restored: int
    size_bytes: int

    def __str__(self) -> str:
        return f"{self.restored} of {self.subtasks} subtasks, {size_text(self.size_bytes)}"


@dataclass(frozen=True)
class Restart:
    """A return to the newest checkpoint: time in seconds since the Unix epoch, and reason."""

    at_s: float
    reason: str


@dataclass(frozen=True)
class SplitView:
    """A split that failed and has not caught up since. If `reason` is empty, the split advances again.

    `since`: the number of the checkpoint record in which it first stayed at its position; 0: none yet. `failures`: the
    number of consecutive checkpoints without an advance.
    """

    source: str
    split: str
    position: int | float | str | bool | None
    since: int
    failures: int
    reason: str
    parked: bool


@dataclass(frozen=True)
class Batch:
    """A committed batch: PySpark's progress keys without metrics, and the time from its plan to its commit."""

    progress: Mapping[str, Any]
    started_s: float
    ended_s: float

    @property
    def rows(self) -> int:
        return int(self.progress["numInputRows"])


@dataclass(frozen=True)
class JobView:
    """A job at the moment of the call.

    Times are in seconds since the Unix epoch, watermarks in microseconds, lag in each source's unit.
    """

    name: str
    job_id: str
    run_id: str
    epoch: Epoch
    storage: str
    started_s: float
    now_s: float
    phase: str
    is_active: bool
    error: str | None
    paused_by: frozenset[str]
    """The reasons why no batch is planned: sinks that lag far behind, and savepoints after which the query stops."""
    refused_by: tuple[Refusal, ...]
    """Refusals because of which a checkpoint waits for a later batch boundary."""
    outage: str | None
    clock: str
    """The difference between the job's time and the wall clock, in words; empty if they agree."""
    savepoints: tuple[str, ...]
    """The progress of the savepoints that are being written."""
    savepoint_history: tuple[SavepointStats, ...]
    """The last savepoints and their outcomes, oldest first, including those of earlier starts."""
    source_messages: tuple[str, ...]
    """The reasons why sources give no rows at the moment."""
    graph: JobGraph
    parallelism: int
    max_parallelism: int
    settings: Mapping[str, str]
    """The checkpoint settings in force, in words."""
    kept: Mapping[str, str]
    """The settings that an update kept for later starts, in words."""
    batches: tuple[Batch, ...]
    """The last batches, oldest first."""
    lag: Mapping[str, Mapping[str, int]]
    source_watermarks: Mapping[str, int]
    operator_watermarks: Mapping[str, int]
    checkpoints: tuple[CheckpointStats, ...]
    """The last triggers and their outcomes, oldest first, including those of earlier starts."""
    restored: int | None
    """The number of the record to which the job last returned; None: it began with empty state."""
    restoring: Restoring | None
    """The progress of a restore that takes long; None if there is none."""
    restarts: tuple[Restart, ...]
    advice: str | None
    """The autoscaler's advice on the number of TaskManagers; None without it, or before its first measurement."""
    rescale: str | None
    """The progress of a rescale, or the reason why the last rescale failed; None if there is neither."""
    materialized_by: str | None
    """The processes that materialize tables, in words; None without `ChangelogConfig(materialized_by="follower")`."""
    losses: tuple[LostRows, ...]
    """Rows lost because the job went on without a TaskManager, oldest first, including those of earlier starts."""
    dropping: int
    """The number of rows dropped so far for TaskManagers that are missing now."""
    processes: tuple[ProcessView, ...]
    dead_letters: str | None
    """URL of the folder with the dead letters; None if bad rows end the query."""
    bad_reasons: tuple[tuple[BadReason, int], ...]
    """The bad rows since the start by source, operator and reason, the most frequent first."""
    hot_keys: Mapping[str, tuple[tuple[str, float], ...]]
    """The keys that occur in many rows of an operator, by operator, each with its share of the rows."""
    sink_rows: Mapping[str, int]
    """The rows of committed batches that were staged for each sink since the start."""
    backlog: Mapping[str, int]
    """The number of recorded groups that each sink has yet to publish."""
    behind: tuple[SplitView, ...]
    """The splits that failed and have not caught up since."""
    metrics: Picture
    events: tuple[LoggedEvent, ...]
    prices: StorePrices

    @property
    def store_use(self) -> StoreUse:
        """Requests to the storage since the start, by lane."""
        return store_use(self.metrics, self.now_s - self.started_s)

    @property
    def standby(self) -> int:
        """Return the number of TaskManagers that stand by."""
        return sum(each.is_standby for each in self.processes)

    @property
    def is_exactly_once(self) -> bool:
        """Return False after a loss of rows, until a user has acknowledged it."""
        return not self.dropping and all(each.acknowledged for each in self.losses)

    @property
    def message(self) -> str:
        """Describe in a sentence the work that the job does, or the reason why it waits."""
        if not self.is_active:
            return "Stopped" if self.error is None else f"Ended with an error: {self.error}"
        if lagging := sorted(self.paused_by & set(self.graph.sinks)):
            return f"Waiting for sink {', '.join(lagging)}, which has too many groups to publish"
        leaving = [self.leaving] if self.leaving else []
        waits = [f"a checkpoint waits: {listed(self.refused_by)}"] if self.refused_by else []
        if self.paused_by:
            return "; ".join(["Planning no further batch, to stop with a savepoint", *waits, *self.savepoints])
        if self.outage is not None:
            return self.outage
        if self.restoring is not None:
            return f"Restoring {self.restoring}"
        if self.source_messages:
            return f"Waiting for {'; '.join(self.source_messages)}"
        if self.dropping:
            return f"Processing without a TaskManager; {self.dropping:,} rows for it have been dropped"
        doing = f"Processing, without {self.splits_that_stand}" if self.splits_that_stand else "Processing"
        lost = sum(each.rows for each in self.losses if not each.acknowledged)
        ended = [f"exactly-once has ended: {lost:,} rows were lost (query.losses)"] if lost else []
        clock = [self.clock] if self.clock else []
        return "; ".join([doing, *leaving, *ended, *clock, *waits, *self.savepoints])

    @property
    def leaving(self) -> str:
        """Name the processes whose machines will be removed, and the reasons; empty if there are none."""
        reasons: dict[str, list[str]] = {}
        for each in self.processes:
            if each.leaving:
                reasons.setdefault(each.leaving, []).append(f"{each.role} {each.number}")
        return "; ".join(
            f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} to leave: {why}" for why, names in reasons.items()
        )

    @property
    def splits_that_stand(self) -> str:
        """Name the first few splits that fail or are parked; empty if there are none."""
        standing = [each for each in self.behind if each.reason]
        shown = "; ".join(
            f"split {each.split!r} of {each.source!r}, {'parked' if each.parked else 'failing'}: {each.reason}"
            for each in sorted(standing, key=lambda each: not each.parked)[:SPLITS_SHOWN_MAX]
        )
        more = len(standing) - SPLITS_SHOWN_MAX
        return f"{shown}; and {more} more" if more > 0 else shown


def graph_of(program: Program) -> JobGraph:
    """Describe a program for people. Dead letters are no node: every node may write to them."""
    edges = (
        GraphEdge(_origin(leg), _target(output), program.runs_in_python(leg), leg.steps_before(output.node))
        for leg in program.legs
        for output in leg.outputs
    )
    return JobGraph(tuple(program.sources), tuple(program.operators), tuple(program.sinks), tuple(edges))


def _origin(leg: Leg) -> str:
    if isinstance(leg.origin, SourceOrigin):
        return f"source/{leg.origin.source}"
    return f"operator/{leg.origin.operator}"


def _target(output: LegOutput) -> str:
    if isinstance(output.target, OperatorTarget):
        return f"operator/{output.target.operator}"
    return f"sink/{output.target.sink}"
