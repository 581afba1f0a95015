"""Checks of transforms' plans on Spark Connect: plans are read from `explain`'s text, and refused if not repeatable.

The text shows each node and expression, but not whether a Python function is deterministic. The declared plan says so
for functions that the program made itself. A batch whose partitions changed is refused while it runs, as on a classic
session (`tasks.DeliverUnit`).
"""

import re
from collections.abc import Iterator
from itertools import pairwise, takewhile
from typing import Any, NamedTuple

from holdfast.errors import JobRefused

CHANGING = (
    "current_date|current_time|current_timestamp|localtimestamp|now|rand|random|randn|randstr|uniform|uuid|shuffle|"
    "monotonically_increasing_id|spark_partition_id|input_file_name|input_file_block_start|input_file_block_length"
)
"""Spark's functions whose value changes when a batch is repeated."""
_CHANGING = re.compile(rf"(?<![\w.`#])({CHANGING})\((?:[^()]|\([^()]*\))*\)(?!#)", re.IGNORECASE)
_SECTION = re.compile(r"^== (.+) ==$", re.MULTILINE)
_NODE = re.compile(r"^(?P<gap>[\s:|+-]*)(?:\*\(\d+\) )?(?P<text>\S.*)$")
SAME_PARTITIONS = re.compile(
    "Project|Filter|Generate|Expand|Sort|Range|CollectMetrics|BroadcastHashJoin|BroadcastNestedLoopJoin|"
    "SerializeFromObject|DeserializeToObject|(Python)?Map(InPandas|InArrow|Elements|Partitions)|"
    "(Batch|Arrow)EvalPython(UDTF)?"
)
"""Nodes that keep rows in their partitions. All other nodes are refused."""


TABLES = frozenset({"BroadcastExchange", "ReusedExchange", "Subquery", "ReusedSubquery", "SubqueryBroadcast"})
"""Nodes whose rows separate jobs compute before the stage: broadcast tables and subqueries."""


class PlanNode(NamedTuple):
    """A node in the text of a plan."""

    depth: int
    text: str

    @property
    def kind(self) -> str:
        return re.split(r"[\s(\[]", self.text, maxsplit=1)[0]


def check_texts(name: str, rows: Any, stream: int) -> None:
    """Check the plans of a transform with the result `rows`. The stream is the range that begins with `stream`. Raises
    `JobRefused` naming the parts that cannot run."""
    sections = _sections(rows._explain_string(extended=True))
    _refuse_nondeterminism(name, sections["Analyzed Logical Plan"], rows)
    _refuse_other_partitions(name, list(_above_tables(nodes_of(sections["Physical Plan"]))), stream)


def check_uncached(name: str, rows: Any, stream: int) -> None:
    """Refuse a transform that caches the stream. `rows` must belong to the session that has the cache."""
    nodes = nodes_of(_sections(rows._explain_string(extended=True))["Physical Plan"])
    for place, node in enumerate(nodes):
        below = takewhile(lambda each, depth=node.depth: each.depth > depth, nodes[place + 1 :])  # type: ignore[misc]
        if node.kind == "InMemoryTableScan" and any(_is_stream(each, stream) for each in below):
            raise JobRefused(_other_rows(name, []))


def _sections(text: str) -> dict[str, str]:
    parts = _SECTION.split(text)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def nodes_of(plan: str) -> list[PlanNode]:
    """Return the nodes of a plan's text from top to bottom, with their depths."""
    found = [_NODE.match(line) for line in plan.strip().splitlines()]
    return [PlanNode(len(each["gap"]), each["text"]) for each in found if each is not None]


def _above_tables(nodes: list[PlanNode]) -> Iterator[PlanNode]:
    """Leave out the nodes below tables that are computed before the stage."""
    below: int | None = None
    for node in nodes:
        if below is not None and node.depth > below:
            continue
        below = node.depth if node.kind in TABLES else None
        yield node


def _refuse_other_partitions(name: str, nodes: list[PlanNode], stream: int) -> None:
    """Refuse a plan in which a partition of the result does not come only from the same partition of the stream."""
    if len(nodes) == 1 and nodes[0].text.startswith("LocalTableScan <empty>"):
        return
    for node in nodes:
        if "Exchange" in node.kind and "Broadcast" not in node.kind:
            raise JobRefused(
                f"transform({name}) needs a shuffle ({node.text[:200]}); a transform sees a part of a batch at a time. "
                "Group by key with .key_by(...), join only a table that Spark broadcasts (functions.broadcast)"
            )
    rest = [node for node in nodes if node.kind not in TABLES]
    leaves = [node for node, below in pairwise([*rest, PlanNode(-1, "")]) if below.depth <= node.depth]
    others = [node.text[:200] for node in leaves if not _is_stream(node, stream)]
    if others or len(leaves) != 1:
        raise JobRefused(_other_rows(name, others))
    for node in rest:
        if not SAME_PARTITIONS.fullmatch(node.kind):
            raise JobRefused(
                f"transform({name}) may change the number of partitions ({node.text[:200]}), and so bring together "
                "rows that different tasks read; leave out coalesce, limit and tail"
            )


def _is_stream(node: PlanNode, stream: int) -> bool:
    return node.text.startswith(f"Range ({stream},")


def _other_rows(name: str, others: list[str]) -> str:
    return (
        f"transform({name}) must take its rows from the DataFrame it is given, once, and may otherwise read broadcast "
        f"tables only; found {'; '.join(others) or 'that DataFrame broadcast or cached'}. Unite streams with "
        "Stream.union, join tables as functions.broadcast(table) on the right of a left or inner join, and do not "
        "cache the DataFrame"
    )


def _refuse_nondeterminism(name: str, analyzed: str, rows: Any) -> None:
    tree = analyzed.strip().partition("\n")[2]  # the first line holds the columns' names and types
    found = _CHANGING.search(tree)
    culprit = found[0] if found else None
    if culprit is None and any(node.kind == "Sample" for node in nodes_of(tree)):
        culprit = "sample"
    if culprit is None:
        culprit = next(_changing_functions(rows._plan.to_proto(rows.sparkSession.client)), None)
    if culprit is not None:
        raise JobRefused(
            f"transform({name}) uses {culprit}, which gives another value when a batch is repeated; take such values "
            "from the data, or the time of the batch from ctx.batch_time in a function"
        )


def _changing_functions(message: Any) -> Iterator[str]:
    """Yield the names of the Python functions in a declared plan that are declared nondeterministic."""
    if message.DESCRIPTOR.name == "CommonInlineUserDefinedFunction" and not message.deterministic:
        yield message.function_name
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if field.is_repeated else [value]:
                yield from _changing_functions(each)
