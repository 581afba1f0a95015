"""The page of functions and operators lists those that are compared with Spark, each with an example."""

from pathlib import Path

from expression_cases_kit import quick_cases, shown_names

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "expressions.md"
OPENING = """# Functions and operators of expressions

[Expressions](../guide/expressions.md) know the functions, operators and casts of this page. A test compares each with
Spark, over generated values, in ANSI mode and without, and makes this page. For all else there is `transform`.
"""


def made() -> str:
    examples = dict(quick_cases())
    parts = [OPENING]
    for group, names in shown_names():
        lines = [f"| {_code(name)} | {_code(examples[name])} |" for name in names]
        parts.append("\n".join([f"## {group.capitalize()}", "", "| name | for example |", "|---|---|", *lines, ""]))
    return "\n".join(parts)


def _code(text: str) -> str:
    return "`` " + text.replace("|", "\\|") + " ``"


def test_the_page_lists_what_is_compared_with_spark() -> None:
    assert PAGE.read_text() == made(), "write the page anew: python tests/expressions/test_expressions_page.py"


if __name__ == "__main__":
    PAGE.write_text(made())
