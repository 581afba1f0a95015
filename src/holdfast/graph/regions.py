"""Regions of a job: the parts whose work fails, and advances, without the others. Pure.

    split ──leg──► sink                      the split is a region: nothing of it meets another split's rows
    split ──leg──► operator ──leg──► sink    an exchange: every subtask may hold rows of every split, so that the
                                             whole job is one region

A split is a region if no operator is in the job and its source keeps a position for each split
(`Source.splits_stand_alone`). A job with an operator is one region even where some of its sources never reach it: the
record of a checkpoint is a cut of the whole job, and pipelines that share nothing are better two jobs.
"""

from dataclasses import dataclass

from holdfast.graph.program import Leg, OperatorOrigin, Program, SinkTarget, SourceOrigin, Transform


@dataclass(frozen=True)
class Regions:
    """The regions of a job.

    `by_split`: the sources of which each split is a region. `joined`: for each part of the job that makes one region of
    several splits, the reason.
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
    legs = [f"  level {leg.level}: {_shown_leg(program, leg)}" for leg in program.legs]
    alone = [f"  source {name!r}: each split is a region" for name in regions.by_split]
    joined = [f"  {reason}" for reason in regions.joined]
    return "\n".join(["legs", *legs, "regions", *alone, *joined])


def _shown_leg(program: Program, leg: Leg) -> str:
    origin, target = leg.origin, leg.target
    if isinstance(origin, SourceOrigin):
        began = f"{program.sources[origin.source].kind} source {origin.source!r}"
    else:
        assert isinstance(origin, OperatorOrigin)
        began = f"operator {origin.operator!r}"
    output = [f"output {origin.output!r}"] if origin.output else []
    watermark = [] if leg.watermark is None else [f"watermark of {leg.watermark.column!r}"]
    steps = ["transform" if isinstance(step, Transform) else str(step) for step in leg.steps]
    if isinstance(target, SinkTarget):
        ended = f"{type(program.sinks[target.sink]).__name__} {target.sink!r}"
    else:
        to = f"as {target.broadcast!r} to every subtask of" if target.broadcast else "to"
        ended = f"by {', '.join(target.key_columns)} {to} operator {target.operator!r}"
    return " → ".join([began, *output, *watermark, *steps, ended])
