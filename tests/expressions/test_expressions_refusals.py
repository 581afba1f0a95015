"""Expressions that cannot run are refused by name; parts that fail run over the rows alone that need them."""

import importlib
import pickle

import pyarrow as pa
import pytest
from expression_cases_kit import cases

from holdfast.expressions.declared import SqlExpression
from holdfast.expressions.nodes import ExpressionRefused, SqlSettings
from holdfast.expressions.table import FUNCTIONS

ROWS = pa.RecordBatch.from_pydict(
    {
        "price": [10, 0, None],
        "text": ["7", "x", None],
        "items": [[1, 2], [], None],
        "at": pa.array([0, 1, 2], pa.timestamp("us", "UTC")),
    }
)


def values(text: str, settings: SqlSettings | None = None) -> list[object]:
    return list(SqlExpression(text, settings or SqlSettings()).bound(ROWS.schema)(ROWS).to_pylist())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("pric > 1", "there is no column 'pric'; the nearest are price"),
        ("uper(text)", "the function uper is not supported in expressions; the nearest are upper"),
        ("price +", "is not Spark SQL: .* line 1, column"),
        ("price > items", "BIGINT, ARRAY<BIGINT>, which have no common type"),
        ("upper(items)", "argument 1 of upper is ARRAY<BIGINT>; expected string"),
        ("substring(text)", r"substring got 1 arguments; expected substring\(string, int, int\?\)"),
        ("price.x", "BIGINT has no field 'x'"),
        ("rand()", r"the function rand is not supported .* a batch is processed again; make it of columns"),
        ("now()", r"the function now is not supported .* use with_batch_time"),
        ("uuid()", "Its answer would change"),
        ("count(price)", r"takes many rows: use key_by"),
        ("lag(price)", "takes many rows: use top"),
        ("window(at, '1 hour')", r"Windows are keys: use key_by\(…, hf.window"),
        ("explode(items)", r"several rows of a row: use transform\(…\) or map_batches"),
        ("timestampadd(CENTURY, 1, at)", "timestampadd: the unit CENTURY is not known; expected one of MICROSECOND"),
        ("initcap(text)", r"the function initcap is not supported .* Use transform"),
        ("map_zip_with(map('a', 1), map('a', 1), (k, x, y) -> x)", "the function map_zip_with is not supported"),
        ("array_union(array(items), array(items))", "array_union of arrays of ARRAY<BIGINT> is not supported"),
        ("current_timestamp()", "the function current_timestamp is not supported"),
        ("text rlike '(?=a)'", "'.*' in the regular expression .* is not supported"),
        ("date_format(at, 'G')", "in the pattern 'G' of a time is not supported"),
        ("sum(price) over ()", "is not supported in expressions"),
        ("price in (select 1)", "IN takes a list here"),
        ("cast(price as interval)", "not supported"),
        ("aggregate(items, 0, (a, b) -> a + b)", "the lambda gives BIGINT and the start is INT; cast the start"),
        ("price; text", "expected a single expression"),
        ("cast('now' as timestamp)", "its value would change when a batch is processed again"),
        ("map(null, 1)", "A null type field may not be non-nullable; use transform"),
        ("typeof(at - at)", "typeof of INTERVAL DAY TO SECOND is not supported"),
        ("price between symmetric 5 and 1", "SYMMETRIC is not supported in expressions"),
        ("from_json(text, 'array<int>')", "expected a name and a type for each field"),
        ("any_match(items, x -> x > 1)", "the function any_match is not supported in expressions"),
        ("text = 1", "have no common type"),
    ],
)
def test_a_text_that_cannot_run_is_refused_by_name(text: str, reason: str) -> None:
    settings = SqlSettings(ansi=text != "text = 1")
    with pytest.raises(ExpressionRefused, match=reason):
        values(text, settings)


@pytest.mark.parametrize("pattern", ["^a", r"\\Aa", "(^|,)a", "(^a)", "^a|b", "(?:^)a", "(?i)^a", r"\\\\\\Aa", "[b]^a"])
def test_the_start_of_the_text_is_refused_where_arrow_would_find_it_again_after_each_match(pattern: str) -> None:
    for name in ("split", "regexp_count"):
        with pytest.raises(ExpressionRefused, match=f"{name}: the start of the text"):
            values(f"{name}(text, '{pattern}')")
    assert values(f"regexp_replace('aa', '{pattern}', 'x')")[0] in ("xa", "aa")


def test_a_caret_that_is_not_the_start_of_the_text_splits_and_counts() -> None:
    for text, pattern, count in [("abca", "[^b]", 3), ("a^b^", r"\\^", 2), (r"a\\Ab", r"\\\\A", 1), ("a^", "[a^]", 2)]:
        assert values(f"regexp_count('{text}', '{pattern}')")[0] == count
        assert values(f"size(split('{text}', '{pattern}'))")[0] == count + 1


def test_a_part_that_may_fail_runs_over_the_rows_that_need_it() -> None:
    assert values("case when price <> 0 then 100 / price end") == [10.0, None, None]
    assert values("price <> 0 and 100 / price > 1") == [True, False, None]
    assert values("price = 0 or 100 / price > 1") == [True, True, None]
    assert values("if(text = 'x', 0, cast(text as int))") == [7, 0, None]
    assert values("coalesce(price, cast(text as bigint), 3)") == [10, 0, 3]


def test_division_by_zero_fails_in_ansi_mode_and_is_null_else() -> None:
    with pytest.raises(pa.ArrowInvalid, match="division by zero"):
        values("100 / price")
    assert values("transform(filter(items, x -> x > 5), x -> x / 0)") == [[], [], None]
    assert values("100 / price", SqlSettings(ansi=False)) == [10.0, None, None]


def test_an_expression_is_bound_again_where_it_is_loaded() -> None:
    bound = SqlExpression("price * 2 + size(items)").bound(ROWS.schema)
    loaded = pickle.loads(pickle.dumps(bound))
    assert loaded(ROWS).equals(bound(ROWS))
    assert loaded.reads == ["price", "items"]


def test_a_text_that_is_the_name_of_a_column_is_that_column() -> None:
    rows = pa.RecordBatch.from_pydict({"a-b": [1, 2]})
    assert SqlExpression("a-b").bound(rows.schema)(rows).to_pylist() == [1, 2]


def test_each_function_is_compared_with_spark() -> None:
    importlib.import_module("holdfast.expressions.bound")  # with all modules whose functions are in the table
    shown = {name for name, _ in cases()}
    assert {name for name in FUNCTIONS if not name.endswith("trim_of")} - shown == set()
    assert len(shown) >= 150


def test_maps_of_some_rows_of_a_batch_are_read() -> None:
    kind = pa.map_(pa.string(), pa.int64())
    rows = pa.RecordBatch.from_pydict({"m": pa.array([[("a", 1)], None, [("b", 2), ("c", 3)], []], kind)})
    bound = SqlExpression("map_values(map_filter(map_concat(m, map('z', 9L)), (k, v) -> v > 2))").bound(rows.schema)
    assert bound(rows.slice(1)).to_pylist() == bound(rows).to_pylist()[1:] == [None, [3, 9], [9]]
