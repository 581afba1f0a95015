"""The driver process: keeps the table of revenues until it is killed.

python -m examples.revenue.driver <dsn> <folder>
"""

import sys

import holdfast as hf
from examples.revenue.job import revenue
from examples.running import session


def main(dsn: str, folder: str) -> None:
    revenue(session(), dsn, folder).start(trigger=hf.processing_time("50ms")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
