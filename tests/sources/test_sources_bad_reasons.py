"""Bad rows are counted by reason: numbers in a text make no new reason, and many reasons take bounded memory."""

from holdfast.sources.bad_reasons import OTHER_REASONS, REASONS_MAX, counted_reasons
from holdfast.sources.base import BadRow


def bad(reason: str, operator: str = "totals") -> BadRow:
    return BadRow("clicks", "0", "7", reason, "{}", operator)


def test_rows_are_counted_together_whose_reasons_differ_in_numbers_and_in_further_lines() -> None:
    rows = [bad(f"value {number}.5 at byte {number}\n  more of {number}") for number in range(7)]
    assert counted_reasons([*rows, bad("column 'v2' is null"), bad("column 'v3' is null", "")]) == (
        (("clicks", "totals", "value … at byte …"), 7),
        (("clicks", "totals", "column 'v2' is null"), 1),
        (("clicks", "", "column 'v3' is null"), 1),
    )


def test_the_rarest_of_many_reasons_are_counted_together() -> None:
    names = [f"column {'x' * number}" for number in range(REASONS_MAX + 5)]
    found = counted_reasons([bad(name) for name in names] + [bad(names[-1])])
    assert len(found) == REASONS_MAX + 1 and found[-1] == (OTHER_REASONS, 5)
    assert found[0] == (("clicks", "totals", names[-1]), 2) and sum(rows for _, rows in found) == len(names) + 1
