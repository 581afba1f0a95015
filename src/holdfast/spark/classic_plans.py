"""Checks of transforms' plans on a classic session: plans are read from the JVM, and refused if not repeatable."""

from collections.abc import Iterator
from typing import Any

from pyspark.sql import DataFrame

from holdfast.errors import JobRefused

_CLOCKS = {"CurrentTimestamp", "CurrentDate", "Now", "LocalTimestamp", "CurrentTime", "CurDateExpressionBuilder"}


def check_plans(name: str, stream: DataFrame, rows: DataFrame) -> None:
    """Check the plans of a transform of `stream` into `rows`. Raises `JobRefused` naming the parts that cannot run."""
    execution = rows._jdf.queryExecution()
    _refuse_nondeterminism(name, execution.analyzed())
    _refuse_other_partitions(name, execution.executedPlan(), _identity(stream._jdf.queryExecution().analyzed()))


def _identity(node: Any) -> int:
    """Return a number that identifies the stream's own leaf among others: Spark numbers the columns of each leaf."""
    output = node.output()
    return int(output.apply(0).exprId().id()) if output.size() else -1


def _refuse_other_partitions(name: str, plan: Any, stream: int) -> None:
    """Refuse a plan in which a partition of the result does not come only from the same partition of the stream."""
    for node in _nodes(plan, below_broadcasts=False):
        kind = node.getClass().getSimpleName()
        if "Exchange" in kind and "Broadcast" not in kind:
            raise JobRefused(
                f"transform({name}) needs a shuffle ({node.simpleString(5)}); a transform sees a part of a batch at "
                "a time. Group by key with .key_by(...), join only a table that Spark broadcasts (functions.broadcast)"
            )
    if plan.getClass().getSimpleName() == "LocalTableScanExec" and plan.rows().isEmpty():
        return
    leaves = [node for node in _nodes(plan, below_broadcasts=False) if not node.children().size()]
    others = [node.simpleString(5) for node in leaves if _identity(node) != stream]
    if others or len(leaves) != 1:
        raise JobRefused(
            f"transform({name}) must take its rows from the DataFrame it is given, once, and may otherwise read "
            f"broadcast tables only; found {'; '.join(others) or 'that DataFrame broadcast or cached'}. Unite streams "
            "with Stream.union, join tables as functions.broadcast(table) on the right of a left or inner join, and do "
            "not cache the DataFrame"
        )
    found = plan.outputPartitioning().numPartitions()
    if found:
        raise JobRefused(
            f"transform({name}) changes the number of partitions ({plan.simpleString(5)} makes {found}), and so brings "
            "together rows that different tasks read; leave out coalesce, limit and tail"
        )


def _refuse_nondeterminism(name: str, plan: Any) -> None:
    for node in _nodes(plan, subqueries=True):
        culprits = [_nondeterministic(expression) for expression in _items(node.expressions())]
        if node.getClass().getSimpleName() == "Sample":
            culprits.append("sample")
        for culprit in culprits:
            if culprit is not None:
                raise JobRefused(
                    f"transform({name}) uses {culprit}, which gives another value when a batch is repeated; "
                    "take such values from the data, or the time of the batch from ctx.batch_time in a function"
                )


def _nondeterministic(expression: Any) -> str | None:
    for child in _items(expression.children()):
        found = _nondeterministic(child)
        if found is not None:
            return found
    if expression.getClass().getSimpleName() in _CLOCKS or not expression.deterministic():
        return str(expression.toString())
    return None


def _nodes(plan: Any, below_broadcasts: bool = True, subqueries: bool = False) -> Iterator[Any]:
    """Yield the nodes of a plan. Separate jobs compute broadcast tables before the stage."""
    yield plan
    if not below_broadcasts and "BroadcastExchange" in plan.getClass().getSimpleName():
        return
    for child in _items(plan.children()):
        yield from _nodes(child, below_broadcasts, subqueries)
    if subqueries:
        for query in _items(plan.subqueries()):
            yield from _nodes(query, below_broadcasts, subqueries)


def _items(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
