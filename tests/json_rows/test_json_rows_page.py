"""The table of the page about JSON is what the reader does."""

import re
from pathlib import Path

import pyarrow as pa
import pytest

from holdfast.json_rows.reader import JsonReader
from holdfast.schema import to_arrow_schema

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "json.md"
ROWS = re.findall(r"^\| ([A-Z].*?) \| (`.*?) \|(.*)\|$", PAGE.read_text(), re.MULTILINE)


@pytest.mark.parametrize(("types", "fits", "unfit"), ROWS, ids=[types for types, _, _ in ROWS])
def test_the_page_names_what_fits_a_type_and_what_does_not(types, fits, unfit):
    for type_ in re.split(r", (?=[A-Z]+(?:,|$))", types):
        reader = JsonReader(to_arrow_schema(f"v {type_}"))
        for text, is_good in [(text, part is fits) for part in (fits, unfit) for text in re.findall("`(.*?)`", part)]:
            bad = reader.read(pa.array([f'{{"v": {text}}}'.encode()])).bad
            assert (bad == []) == is_good, (type_, text, bad)


def test_the_page_names_the_types_of_schemas():
    named = {word for types, _, _ in ROWS for word in re.findall("[A-Z_]{3,}", types)}
    assert named >= {
        "BOOLEAN",
        "TINYINT",
        "SMALLINT",
        "INT",
        "BIGINT",
        "FLOAT",
        "DOUBLE",
        "DECIMAL",
        "STRING",
        "BINARY",
    }
    assert named >= {"DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "STRUCT", "ARRAY", "MAP"}
