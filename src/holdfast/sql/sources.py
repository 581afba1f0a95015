"""Tables of FROM: streams by name, subqueries, and table functions such as `TABLE(TUMBLE(TABLE bids, …))`."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from sqlglot import exp

from holdfast.functions.windows.declared import AnyWindow, session_window, window
from holdfast.sql.grouping import duration
from holdfast.sql.scopes import Table, Tree, call_name, refuse_unread, refused

_ARGUMENTS = {
    "tumble": ("data", "timecol", "size", "offset"),
    "hop": ("data", "timecol", "slide", "size", "offset"),
    "session": ("data", "timecol", "gap"),
}


def refuse_version(query: Tree) -> None:
    """Raise `JobRefused` for a table of FROM as of a time, or a version: only a join looks rows up."""
    version = query.args["from_"].this.args.get("version")
    if version is not None:
        raise refused(version, "AS OF is supported for the table of a JOIN alone")


def source_of(tree: Tree, tables: Mapping[str, Table], made: Callable[[Tree], Table]) -> tuple[str, Table]:
    """Return a table of FROM or JOIN with its name in the query. `made` makes the rows of a subquery.

    Raises `JobRefused`.
    """
    refuse_unread(tree, "this", "alias", "version", "joins")
    if tree.args.get("alias") is not None:
        refuse_unread(tree.args["alias"], "this")
    if isinstance(tree, exp.Subquery):
        return tree.alias.lower(), made(tree.this)
    if isinstance(tree, exp.Table) and isinstance(tree.this, exp.Anonymous):
        return tree.alias.lower(), _windowed(tree.this, tables)
    if not isinstance(tree, exp.Table) or not isinstance(tree.this, exp.Identifier) or tree.args.get("joins"):
        raise refused(tree, "expected the name of a stream, a subquery, or TABLE(TUMBLE(…))")
    return (tree.alias or tree.name).lower(), _named(tree, tables)


def _named(tree: Tree, tables: Mapping[str, Table]) -> Table:
    found = tables.get(tree.name.lower())
    if found is None:
        raise refused(tree, f"there is no stream {tree.name!r}; there are {', '.join(tables)}; pass {tree.name}=…")
    return found


def _windowed(tree: Tree, tables: Mapping[str, Table]) -> Table:
    """Return the table of a table function, with its window."""
    call = tree.expressions[0] if call_name(tree) == "table" and len(tree.expressions) == 1 else tree
    name = call_name(call)
    if name not in _ARGUMENTS:
        raise refused(tree, f"of table functions, {', '.join(each.upper() for each in _ARGUMENTS)} are supported")
    given = dict[str, Tree]()
    for place, each in enumerate(call.expressions):
        parameter = (
            each.this.name.lower() if isinstance(each, exp.Kwarg) else dict(enumerate(_ARGUMENTS[name])).get(place)
        )
        if parameter not in _ARGUMENTS[name] or parameter in given:
            raise refused(call, f"{name.upper()} takes {', '.join(each.upper() for each in _ARGUMENTS[name])}")
        given[str(parameter)] = each.expression if isinstance(each, exp.Kwarg) else each
    missing = [each.upper() for each in _ARGUMENTS[name] if each != "offset" and each not in given]
    if missing or not isinstance(given["data"], exp.Table):
        raise refused(call, f"expected {', '.join(missing) or 'TABLE and the name of a stream'}")
    time = given["timecol"]
    if call_name(time) != "descriptor" or len(time.expressions) != 1 or not isinstance(time.expressions[0], exp.Column):
        raise refused(time, "expected DESCRIPTOR(column)")
    lengths = {each: duration(given[each]) for each in ("size", "slide", "gap", "offset") if each in given}
    if name == "session":
        made: AnyWindow = session_window(time.expressions[0].name, lengths["gap"])
    else:
        made = window(time.expressions[0].name, lengths["size"], lengths.get("slide"), start=lengths.get("offset", 0))
    source = _named(given["data"], tables)
    if source.window is not None or source.ranked is not None:
        raise refused(call, "expected a table without a window or ROW_NUMBER of its own; put that into a subquery")
    within = given["data"].args["partition"].expressions
    if not all(isinstance(each, exp.Column) for each in within):
        raise refused(given["data"], "expected PARTITION BY columns")
    return replace(source, window=made, partition=tuple(each.name for each in within) if name == "session" else None)
