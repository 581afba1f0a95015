"""Defaults that pages name are the code's: in signatures, and wherever a page says "(default)"."""

import ast
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from docs_pages import PAGES, ROOT, name_of

import holdfast as hf
from holdfast import testing

PUBLIC: dict[str, Callable[..., Any]] = {
    **{name: getattr(testing, name) for name in testing.__all__},
    **{name: getattr(hf, name) for name in hf.__all__},
}
STATED = re.compile(r"`(\w+)=([^`]+)`[^`|]{0,3}\(default\)")
"""`name=value` (default): as pages write it in a sentence or a table."""
SIGNATURE = re.compile(r"^\| `(\w+\([^`…]*\))`", re.MULTILINE)
"""The first column of a table that lists what can be called."""
PAGES_OF_SIGNATURES = ["docs/guide/functions.md", "docs/guide/testing.md"]


def parameters(call: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    try:
        return dict(inspect.signature(call).parameters)
    except ValueError:
        return {}


def defaults() -> dict[str, set[Any]]:
    """Map the name of each parameter to its default in each public call that has it."""
    calls = [*PUBLIC.values(), hf.KeyedStream.aggregate, hf.Stream.with_watermark]
    found: dict[str, set[Any]] = {}
    for name, parameter in [item for call in calls for item in parameters(call).items()]:
        if parameter.default is not inspect.Parameter.empty:
            found.setdefault(name, set()).add(repr(parameter.default))
    return found


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_what_a_page_calls_the_default_is_the_default(page: Path) -> None:
    known = defaults()
    for name, value in STATED.findall(page.read_text()):
        assert repr(ast.literal_eval(value)) in known.get(name, set()), f"{name}={value} is not the default"


def test_pages_name_some_defaults() -> None:
    assert {name for page in PAGES for name, _ in STATED.findall(page.read_text())} >= {"changelog", "on_new_column"}


@pytest.mark.parametrize("page", PAGES_OF_SIGNATURES)
def test_the_signatures_in_a_page_have_the_defaults_of_the_code(page: str) -> None:
    compared = 0
    for text in SIGNATURE.findall((ROOT / page).read_text()):
        call = ast.parse(text, mode="eval").body
        assert isinstance(call, ast.Call)
        if not isinstance(call.func, ast.Name) or call.func.id not in PUBLIC:
            continue
        known = parameters(PUBLIC[call.func.id])
        for argument in call.args:
            assert isinstance(argument, ast.Name)
            assert argument.id in known, f"{text}: {argument.id} is no parameter"
            assert known[argument.id].default is inspect.Parameter.empty, f"{text}: {argument.id} has a default"
        for keyword in call.keywords:
            assert keyword.arg is not None
            assert ast.literal_eval(keyword.value) == known[keyword.arg].default, f"{text}: {keyword.arg}"
        compared += 1
    assert compared > 4
