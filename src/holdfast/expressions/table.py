"""The table of functions, with the names of each, the types that it takes, and the way to build its term."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

import pyarrow as pa

from holdfast.expressions.nodes import Binding, ExpressionRefused, Term, applied, with_arrays

Build = Callable[..., Term]
NEAREST = 3
"""Number of names that a message proposes for an unknown name."""


@dataclass(frozen=True)
class Function:
    """A function. `takes`: the types of its arguments, with `?` for an optional argument, and `*` if the last may be
    repeated."""

    names: tuple[str, ...]
    room: str
    takes: tuple[str, ...]
    build: Build

    @property
    def shown(self) -> str:
        return f"{self.names[0]}({', '.join(self.takes)})"

    def node(self, binder: Binding, given: Sequence[Term]) -> Term:
        """Make the term of a call. Raises `ExpressionRefused`."""
        least = sum(not each.endswith(("?", "*")) for each in self.takes)
        repeated = bool(self.takes) and self.takes[-1].endswith("*")
        if len(given) < least or (len(given) > len(self.takes) and not repeated):
            raise ExpressionRefused(f"{self.names[0]} got {len(given)} arguments; expected {self.shown}")
        takes = [*self.takes, *self.takes[-1:] * (len(given) - len(self.takes))]
        made = [
            binder.fitted(node, kind.rstrip("?*"), f"argument {place} of {self.names[0]}")
            for place, (node, kind) in enumerate(zip(given, takes, strict=False), 1)
        ]
        return self.build(binder, *made)


_REPEATED = "Its answer would change when a batch is processed again"
_WAYS = {
    "count sum avg mean min max first last stddev variance collect_list collect_set max_by min_by any_value array_agg "
    "count_if approx_count_distinct percentile percentile_approx median mode corr bool_and bool_or every some": (
        "It takes many rows: use key_by(…).aggregate(…), or a ProcessFunction"
    ),
    "window session_window window_time": "Windows are keys: use key_by(…, hf.window(…))",
    "lag lead row_number rank dense_rank ntile": "It takes many rows: use top(…), or ROW_NUMBER in job.sql(…)",
    "explode explode_outer posexplode posexplode_outer inline inline_outer stack json_tuple": (
        "It makes several rows of a row: use transform(…) or map_batches(…)"
    ),
    "current_timestamp now localtimestamp current_date curdate current_time": (
        f"{_REPEATED}; use with_batch_time(…), or ctx.batch_time in a function"
    ),
    "rand randn random randstr uniform uuid shuffle": f"{_REPEATED}; make it of columns, with hash(…) or xxhash64(…)",
    "monotonically_increasing_id spark_partition_id input_file_name": f"{_REPEATED}; let the source give a column",
}
"""Functions that are not expressions over a row, and what to use instead."""

FUNCTIONS: dict[str, Function] = {}
"""All functions by each of their names, in lower case."""


def function(names: str, takes: str = "") -> Callable[[Build], Build]:
    """Add a function to the table. It is called with the binder and its arguments, as terms of the types in `takes`."""

    def put(build: Build) -> Build:
        each = tuple(names.split())
        kinds = tuple(part.strip() for part in takes.split(",")) if takes else ()
        room = build.__module__.rpartition(".")[2]
        made = Function(each, room, kinds, build)
        for name in each:
            assert name not in FUNCTIONS, name
            FUNCTIONS[name] = made
        return build

    return put


def simple(
    names: str,
    takes: str,
    gives: pa.DataType | None,
    kernel: Callable[..., pa.Array],
    *,
    arrays: bool = False,
    fails: bool = False,
) -> None:
    """Put a function into the table that is a kernel over its arguments. `gives`: None for the type of the first."""
    run = with_arrays(kernel) if arrays else kernel

    def build(_: Any, *given: Term) -> Term:
        return applied(gives or given[0].type, run, *given, fails=fails)

    build.__module__ = kernel.__module__ if kernel.__module__.startswith("holdfast.") else _caller()
    function(names, takes)(build)


def _caller() -> str:
    import inspect

    frame = inspect.currentframe()
    while frame is not None and frame.f_globals["__name__"] == __name__:
        frame = frame.f_back
    return "" if frame is None else str(frame.f_globals["__name__"])


def found(name: str) -> Function:
    """Return the function of a name. Raises `ExpressionRefused` with the nearest names."""
    made = FUNCTIONS.get(name.lower())
    if made is None:
        near = get_close_matches(name.lower(), FUNCTIONS, NEAREST)
        way = next((way for names, way in _WAYS.items() if name.lower() in names.split()), "")
        proposed = f"; the nearest are {', '.join(near)}" if near and not way else ""
        raise ExpressionRefused(
            f"the function {name} is not supported in expressions{proposed}. {way or 'Use transform(…) for it'}"
        )
    return made
