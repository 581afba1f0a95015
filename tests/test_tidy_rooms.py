"""Each room says what lies in it, truly, and no modules know each other in a circle."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from test_tidy import PACKAGE, SOURCES, where

ROOMS = sorted({path.parent for path in SOURCES} - {PACKAGE})
FILES = re.compile(r"^Files in reading order: (.*?)(?:\n\n|\Z)", re.MULTILINE | re.DOTALL)


def named_files(room: Path) -> list[str]:
    """The names in the paragraph of a room's docstring that lists its files; a folder's name ends with a slash."""
    listed = FILES.search(ast.get_docstring(ast.parse((room / "__init__.py").read_text())) or "")
    return re.findall(r"`(\w+/?)`", listed[1]) if listed else []


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(PACKAGE).as_posix())
def test_the_docstring_of_a_room_names_each_of_its_files_once(room):
    files = [path.stem for path in SOURCES if path.parent == room and path.stem != "__init__"]
    folders = [f"{other.name}/" for other in ROOMS if other.parent == room]
    assert sorted(named_files(room)) == sorted([*files, *folders]), where(room / "__init__.py")


OPERATORS = "a spec creates the operator, which reads the spec"
CIRCLES = {
    "functions.aggregates.combining functions.aggregates.operator functions.aggregates.spec": OPERATORS,
    "functions.joins.asof_operator functions.joins.condition functions.joins.declared functions.joins.join_operator "
    "functions.joins.output": (OPERATORS),
    "functions.over.declared functions.over.operator": OPERATORS,
    "functions.process.by_array.batch_operator functions.process.by_row.row_operator functions.process.declared "
    "functions.process.of_subtask.function_operator": OPERATORS,
    "functions.windows.aggregate functions.windows.window_operator": OPERATORS,
    "functions.windows.session functions.windows.session_operator": OPERATORS,
    "job job_settings keyed_streams spark.cluster_driver spark.cluster_start spark.start streams": (
        "a job starts itself, and the start reads the job"
    ),
    "storage.hdfs_store storage.links storage.obstore_store storage.store": "a store loads its library as it opens",
}
"""Modules that know each other, some of them for type checks or late alone, and the reason. No others may."""


def modules_known_to(path: Path, modules: dict[str, Path]) -> set[str]:
    """The modules that a file imports anywhere, in functions and for type checks too."""
    known = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("holdfast."):
            inside = (node.module or "").removeprefix("holdfast.")
            names = {f"{inside}.{each.name}" for each in node.names}
            known |= {name if name in modules else inside for name in names}
    return known & set(modules)


def circles(known: dict[str, set[str]]) -> Iterator[set[str]]:
    """The largest sets of modules of which each knows all others, by way of others."""
    reached = {module: {module} for module in known}
    for module, found in reached.items():
        pending = [module]
        while pending:
            new = known[pending.pop()] - found
            found |= new
            pending += new
    left = set(known)
    while left:
        module = left.pop()
        circle = {other for other in reached[module] if module in reached[other]}
        left -= circle
        if len(circle) > 1:
            yield circle


def test_modules_know_each_other_in_a_circle_for_a_reason_that_is_given():
    modules = {
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts): path for path in SOURCES if path.stem != "__init__"
    }
    found = list(circles({name: modules_known_to(path, modules) - {name} for name, path in modules.items()}))
    allowed = [set(each.split()) for each in CIRCLES]
    new = [" ".join(sorted(each)) for each in found if not any(each <= other for other in allowed)]
    assert not new, "give the type, or the part that both need, a module of its own:\n" + "\n".join(new)
    over = [" ".join(sorted(each)) for each in allowed if not any(other <= each for other in found)]
    assert not over, "these circles are no more:\n" + "\n".join(over)
