"""Expressions that are compared with Spark, each with the function or operator that it shows."""

from pathlib import Path

CASES = Path(__file__).parent / "expression_cases.txt"


def cases() -> list[tuple[str, str]]:
    """Return each expression with the name of the function or operator that it shows."""
    lines = (line for line in CASES.read_text().splitlines() if line and not line.startswith("#"))
    return [(name, text) for name, _, text in (line.partition("\t") for line in lines)]


def quick_cases() -> list[tuple[str, str]]:
    """Return an expression for each function and operator: those that `make test` has time for."""
    return list({name: (name, text) for name, text in reversed(cases())}.values())[::-1]


def shown_names() -> list[tuple[str, list[str]]]:
    """Return the functions and operators, in groups."""
    groups: list[tuple[str, list[str]]] = []
    for line in CASES.read_text().splitlines()[1:]:
        if line.startswith("# "):
            groups.append((line[2:], []))
        elif line and line.partition("\t")[0] not in groups[-1][1]:
            groups[-1][1].append(line.partition("\t")[0])
    return groups
