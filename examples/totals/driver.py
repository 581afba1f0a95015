"""The driver process: sums up orders until it is killed.

python -m examples.totals.driver <host:port> <folder>
"""

import sys

import holdfast as hf
from examples.running import session
from examples.totals.job import totals


def main(servers: str, folder: str) -> None:
    totals(session(), servers, folder).start(trigger=hf.processing_time("50ms")).awaitTermination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
