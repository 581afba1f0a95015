"""The end of a program: threads of libraries do not bring it down."""

import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import write_deltalake

READ_AND_END = """
import sys
import holdfast
from deltalake import DeltaTable
for _ in range(3):
    DeltaTable(sys.argv[1]).to_pyarrow_table()
"""


@pytest.mark.long
def test_a_program_that_reads_through_python_files_ends_in_order(tmp_path: Path) -> None:
    """One program of some 20 was aborted before there was a pause at the end."""
    write_deltalake(tmp_path, pa.table({"a": [1, 2, 3]}))
    for _ in range(100):
        subprocess.run([sys.executable, "-c", READ_AND_END, tmp_path], check=True, timeout=60)
