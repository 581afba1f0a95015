"""Parts of queries: conditions are taken apart at AND, names of tables go, refusals say the place in the text."""

from datetime import timedelta

import pytest

from holdfast.errors import JobRefused
from holdfast.expressions.parse import parsed
from holdfast.sql.grouping import duration
from holdfast.sql.scopes import all_of, conditions, refused, without_alias


def test_conditions_are_taken_apart_at_and_alone() -> None:
    tree = parsed("a = 1 and (b = 2 and (c = 3 or d = 4)) and not (e and f)")
    parts = [each.sql("spark") for each in conditions(tree)]
    assert parts == ["a = 1", "b = 2", "c = 3 OR d = 4", "NOT (e AND f)"]
    assert all_of([]) is None
    joined = all_of(list(conditions(parsed("a and b and c"))))
    assert joined is not None and joined.sql("spark") == "a AND b AND c"


def test_the_name_of_the_only_table_goes_and_fields_of_structs_stay() -> None:
    assert without_alias(parsed("t.a + r.x + u.t.b"), "t").sql("spark") == "a + r.x + u.t.b"


def test_a_refusal_names_the_first_place_of_the_part() -> None:
    tree = parsed("SELECT a,\n  b + cde FROM t")
    assert "b + cde at line 2, column 3: no" in str(refused(tree.expressions[1], "no"))


@pytest.mark.parametrize(
    ("text", "seconds"), [("'90 seconds'", 90), ("INTERVAL 2 MINUTES", 120), ("INTERVAL '1' DAY", 86_400)]
)
def test_lengths_of_windows_are_intervals(text: str, seconds: int) -> None:
    assert duration(parsed(text)) == timedelta(seconds=seconds)


@pytest.mark.parametrize("text", ["'1 month'", "5", "'soon'", "a"])
def test_other_lengths_are_refused(text: str) -> None:
    with pytest.raises(JobRefused):
        duration(parsed(text))
