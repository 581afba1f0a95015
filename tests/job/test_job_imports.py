"""A program loads the modules of the names that it uses. Sources, sinks and libraries of others stay out of its way."""

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import holdfast as hf
from holdfast import api
from holdfast.api import MODULE_OF

NOT_NEEDED = """
pandas numba llvmlite deltalake rocksdict rich typer obstore pyspark confluent_kafka psycopg2 cryptography
prometheus_client http.server http.client urllib.request asyncio pyarrow.flight
holdfast.query holdfast.jobmaster holdfast.taskmanager holdfast.uploads holdfast.spark holdfast.ui.server holdfast.cli
holdfast.sources.kafka holdfast.sources.postgres holdfast.sinks.delta holdfast.sinks.kafka
"""


def loaded_by(names: str) -> set[str]:
    """Modules that a process has loaded after it used names of the API."""
    program = f"import sys, holdfast as hf\nfor name in {names.split()!r}: getattr(hf, name)\nprint(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(run.stdout.split())


@pytest.mark.parametrize("names", ["", "Job SequenceSource FileSource ParquetSink count sum window available_now"])
def test_a_program_loads_nothing_heavy_that_it_does_not_use(names: str) -> None:
    loaded = loaded_by(names)
    assert sorted(loaded & set(NOT_NEEDED.split())) == []
    assert len([each for each in loaded if each.startswith("holdfast")]) <= (275 if names else 1)


def test_each_public_name_comes_from_the_module_that_the_list_names() -> None:
    assert sorted(MODULE_OF) == sorted(hf.__all__)
    for name, module in MODULE_OF.items():
        assert getattr(import_module(module), name) is getattr(hf, name)


def test_names_for_readers_of_types_are_the_names_that_load() -> None:
    tree = ast.parse(Path(api.__file__).read_text())
    imported = [each for each in ast.walk(tree) if isinstance(each, ast.ImportFrom) and each.module != "typing"]
    assert {name.name: each.module for each in imported for name in each.names} == MODULE_OF
