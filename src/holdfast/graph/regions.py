"""Regions of a job: parts that fail and advance independently of each other. Pure.

    split ──leg──► sink                      the split is a region: its rows never meet another split's rows
    split ──leg──► operator ──leg──► sink    an exchange: every subtask may hold rows of every split, so that the
                                             whole job is one region

A split is a region if no operator is in the job and its source keeps a position for each split
(`Source.splits_stand_alone`). A job with an operator is a single region even if some of its sources never reach the
operator: the record of a checkpoint is a cut of the whole job, and pipelines that share nothing should be two jobs.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from holdfast.graph.nodes import WAYS_SHOWN_MAX
from holdfast.graph.program import (
    Leg,
    LegOutput,
    LegStep,
    OperatorOrigin,
    OperatorTarget,
    Program,
    SinkTarget,
    SourceOrigin,
    Transform,
)
from holdfast.graph.projecting import Omission, Projection, Selection
from holdfast.graph.uniting import Conforming


@dataclass(frozen=True)
class Regions:
    """The regions of a job.

    `by_split`: the sources whose splits are regions. `joined`: for each part of the job that joins several splits to
    one region, the reason.
    """

    by_split: tuple[str, ...]
    joined: tuple[str, ...]


def regions_of(program: Program) -> Regions:
    """Find the regions of a job."""
    if program.operators:
        names = ", ".join(map(repr, program.operators))
        reason = f"the whole job is one region: rows are divided by key on their way to {names}"
        return Regions((), (reason,))
    alone = tuple(name for name, source in program.sources.items() if source.splits_stand_alone)
    together = [name for name in program.sources if name not in alone]
    reasons = [f"source {name!r} is one region: one position stands for all of its splits" for name in together]
    return Regions(alone, tuple(reasons))


def explained(program: Program) -> str:
    """Describe the legs of a job and its regions, a line for each."""
    regions = regions_of(program)
    legs = [f"  level {leg.level}: {way}" for leg in program.legs for way in _shown_leg(program, leg)]
    alone = [f"  source {name!r}: each split is a region" for name in regions.by_split]
    joined = [f"  {reason}" for reason in regions.joined]
    return "\n".join(["legs", *legs, *_engines(program), "regions", *alone, *joined])


def _engines(program: Program) -> list[str]:
    """Say which engine runs which step, a line for each step."""
    steps = [node.step for leg in program.legs for node in leg.nodes if node.step is not None]
    lines = dict.fromkeys(f"  {step}: {engine}" for step in steps if (engine := engine_of(step)))
    return ["engines", *lines] if lines else []


def engine_of(step: LegStep) -> str:
    """Return the engine that runs a step that a user wrote, and why; empty for other steps."""
    if isinstance(step, Transform):
        return "Spark SQL, a Spark job for each batch, because it is a function over a DataFrame"
    if isinstance(step.fn, Selection | Projection):
        is_sql = step.fn.in_sql
        reason = "all of it is supported there" if is_sql else "it is an expression of PyArrow"
        return f"PyArrow in the sender, because {reason}"
    return "" if isinstance(step.fn, Omission | Conforming) else "Python in the sender, because it is a function"


def _shown_leg(program: Program, leg: Leg) -> list[str]:
    origin = leg.origin
    if isinstance(origin, SourceOrigin):
        began = f"{program.sources[origin.source].kind} source {origin.source!r}"
    else:
        assert isinstance(origin, OperatorOrigin)
        began = f"operator {origin.operator!r}"
    output = [f"output {origin.output!r}"] if origin.output else []
    watermark = [] if leg.watermark is None else [f"watermark of {leg.watermark.column!r}"]
    if leg.wanted is not None and program.sources[origin.source].passes_over:  # type: ignore[union-attr]
        watermark.append(f"groups of rows passed over without {leg.wanted}")
    return [
        " → ".join([began, *output, *watermark, *steps, _shown_target(program, each.target)])
        for each in leg.outputs
        for steps in _shown_ways(leg, each)
    ]


def _shown_ways(leg: Leg, output: LegOutput) -> list[list[str]]:
    """The steps on each way to an output; of very many ways the first."""
    ways = list(islice(_ways(leg, output.node), WAYS_SHOWN_MAX + 1))
    return ways if len(ways) <= WAYS_SHOWN_MAX else [*ways[:WAYS_SHOWN_MAX], ["further ways"]]


def _ways(leg: Leg, last: int) -> Iterator[list[str]]:
    waiting: list[tuple[int, list[str]]] = [(last, [])]
    while waiting:
        number, behind = waiting.pop()
        node = leg.nodes[number]
        step = [] if node.step is None else [str(node.step)]
        if not node.inputs:
            yield [*step, *behind]
        waiting.extend((before, [*step, *behind]) for before in reversed(node.inputs))


def _shown_target(program: Program, target: OperatorTarget | SinkTarget) -> str:
    if isinstance(target, SinkTarget):
        return f"{type(program.sinks[target.sink]).__name__} {target.sink!r}"
    to = f"as {target.broadcast!r} to every subtask of" if target.broadcast else "to"
    return f"by {', '.join(target.key_columns)} {to} operator {target.operator!r}"
