"""A source whose splits end their process, hang or raise while a file says so, and the facts that tests check then."""

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow.parquet as pq

import holdfast as hf
from holdfast.sources.base import SourceBatch, SplitRead

ROWS, SPLITS = 600, 30


class FaultySource(hf.SequenceSource):
    """A sequence. A file in `faults` with the name of a split says how that split fails: exit, hang or raise."""

    faults: str = ""

    def read(self, read: SplitRead) -> Iterator[SourceBatch]:
        fault = Path(self.faults, read.split)
        kind = fault.read_text() if fault.exists() else ""
        if kind == "exit":
            os._exit(3)
        while kind == "hang" and fault.exists():
            time.sleep(0.01)
        if kind == "raise":
            raise RuntimeError(f"partition {read.split} is offline")
        yield from super().read(read)


def faulty(folder: Path, **faults: str) -> FaultySource:
    """Make a source whose files are in `folder`, and the first of them: `s7="exit"` for split 7."""
    folder.mkdir()
    for split, kind in faults.items():
        (folder / split.removeprefix("s")).write_text(kind)
    source = FaultySource(ROWS, splits=SPLITS, name="numbers")
    object.__setattr__(source, "faults", str(folder))
    return source


def heal(folder: Path) -> None:
    for fault in folder.iterdir():
        fault.unlink()


def values(folder: Path) -> list[int]:
    """All published values, in order."""
    return sorted(value for file in folder.rglob("*.parquet") for value in pq.read_table(file)["value"].to_pylist())


def without(*splits: int) -> list[int]:
    """The values of all other splits."""
    return [value for value in range(ROWS) if value % SPLITS not in splits]


def failing(query: hf.Query) -> dict[str, str]:
    """The splits that are behind, with the reasons."""
    return {each["split"]: each["reason"] for each in query.status["splitsBehind"]}
