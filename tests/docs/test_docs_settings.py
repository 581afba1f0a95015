"""docs/reference/settings.md against the code: every setting with its default, and nothing that does not exist."""

import inspect
import re
from dataclasses import MISSING, fields
from typing import Any

import pytest
from docs_pages import ROOT

import holdfast as hf
from holdfast.settings import AvailableNow, ProcessingTime

TEXT = (ROOT / "docs" / "reference" / "settings.md").read_text()
ROW = re.compile(r"^\| `(\w+)` \| `([^`]*)` \|", re.MULTILINE)


def _section(title: str) -> dict[str, str]:
    """Setting → default as written, of the table under a heading."""
    _, _, rest = TEXT.partition(f"## {title}\n")
    assert rest, f"docs/reference/settings.md has no section {title!r}"
    return dict(ROW.findall(rest.partition("\n## ")[0]))


def _shown(value: Any) -> str:
    return 'every("10s")' if value == hf.every("10s") else repr(value).replace("'", '"')


def _of_dataclass(cls: Any) -> dict[str, str]:
    made = cls()
    return {each.name: _shown(getattr(made, each.name)) for each in fields(cls) if each.init}


@pytest.mark.parametrize(
    "cls",
    [
        hf.CheckpointConfig,
        hf.ChangelogConfig,
        hf.TaskManagerConfig,
        hf.FailoverConfig,
        hf.StartOptions,
        hf.Autoscale,
        hf.StorePrices,
    ],
    ids=lambda cls: cls.__name__,
)
def test_the_page_lists_every_field_of_a_settings_class_with_its_default(cls: Any) -> None:
    assert _section(cls.__name__) == _of_dataclass(cls)


def test_the_page_lists_every_argument_of_a_job_with_its_default() -> None:
    parameters = dict(inspect.signature(hf.Job).parameters)
    del parameters["spark"], parameters["start_options"]
    found = {
        name: "required" if parameter.default is inspect.Parameter.empty else _shown(parameter.default)
        for name, parameter in parameters.items()
    }
    assert _section("Job") == found


def test_the_page_names_the_defaults_of_both_query_triggers() -> None:
    assert all(each.default is not MISSING for cls in (ProcessingTime, AvailableNow) for each in fields(cls))
    shown = {"processing_time": _shown(ProcessingTime().interval), "available_now": _shown(AvailableNow().timeout)}
    assert _section("Triggers of a query") == shown


def test_every_public_name_is_explained_somewhere_in_the_documentation() -> None:
    text = "".join(page.read_text() for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
    missing = [name for name in hf.__all__ if not re.search(rf"\b{name}\b", text)]
    assert not missing
