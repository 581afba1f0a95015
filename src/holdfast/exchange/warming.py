"""Warming of a sender before it registers, so that its first unit costs no more than later units.

The first expression loads a second library of PyArrow, the first combined rows load compiled kernels: together up to a
second of processor time in a new process. If a leg has expressions, one is evaluated, and made-up rows pass each leg's
combiner and the division by key. All results are thrown away. Neither sources nor functions of users are called. A
failure of warming never fails the process: without warming, the first unit only takes longer.
"""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.equality import normalised_keys
from holdfast.exchange import partition
from holdfast.functions.operator import OperatorSpec
from holdfast.functions.rows.expressions import evaluated
from holdfast.graph.program import LegOutput, MapBatches, OperatorTarget, Program
from holdfast.graph.projecting import Projection, Selection
from holdfast.printable import logger
from holdfast.taskmanager.warming import made_up_rows

_log = logger(__name__)

ROWS = 8_192
"""Made-up rows of a leg: enough that a combiner combines them. A higher value takes longer."""
KEY_GROUPS, PLACES = 128, 2
NUMBERS = pa.schema([("number", pa.int64())])


def warm(program: Program) -> None:
    """Load the libraries and kernels that the program's legs need."""
    for leg in program.legs:
        try:
            if any(isinstance(step, MapBatches) and isinstance(step.fn, Projection | Selection) for step in leg.steps):
                evaluated(made_up_rows(NUMBERS), {"next": pc.field("number") + 1})
            for output in leg.outputs:
                if isinstance(output.target, OperatorTarget):
                    _warm_target(output, output.target, program.operators[output.target.operator])
        except Exception as error:
            _log.info("leg %d stays cold: %s", leg.index, error)


def _warm_target(output: LegOutput, target: OperatorTarget, spec: OperatorSpec) -> None:
    """Combine rows, and divide rows by key."""
    rows = normalised_keys(made_up_rows(output.schema, ROWS), target.key_columns)
    combiner = spec.combiner(True, None)
    sent = [(0, rows)] if combiner is None else [*combiner.take(rows), *combiner.finish()]
    for _, part in sent:
        partition.arrange(part, target.key_columns, np.arange(KEY_GROUPS, dtype=np.uint16) % PLACES, PLACES)
