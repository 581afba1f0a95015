"""Options, errors and output that all commands share."""

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console, ConsoleOptions, RenderableType
from rich.progress import BarColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.segment import Segment

from holdfast.errors import HoldfastError, described
from holdfast.printable import printable
from holdfast.storage.store import ObjectStore
from holdfast.stored_state.opened import open_storage

Storage = Annotated[
    str, typer.Argument(help="The job's storage: file:///…, s3://…, gs://…, az://…, or a local folder.")
]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option",
        "-o",
        envvar="HOLDFAST_STORAGE_OPTIONS",
        metavar="KEY=VALUE",
        help="A storage option, as in Job(storage_options=…); may be repeated. The variable takes several, separated "
        "by spaces. Credentials may also come from the provider's own variables (AWS_ACCESS_KEY_ID, …).",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print a JSON document.")]


class SafeConsole(Console):
    """A console on which texts from storages and rows cannot send control sequences to the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text), segment.style)


def say(text: str) -> None:
    """Print a text without characters that could control the terminal."""
    print(printable(text))


@contextmanager
def told() -> Iterator[None]:
    """Print an error of Holdfast with its name and message, without a traceback, and end with exit code 1."""
    try:
        yield
    except HoldfastError as error:
        print(printable(f"holdfast: {described(error)}"), file=sys.stderr)
        raise typer.Exit(1) from None


def open_storage_of(storage: str, options: list[str] | None) -> ObjectStore:
    url = storage if "://" in storage else Path(storage).absolute().as_uri()
    given: dict[str, str] = {}
    for each in options or []:
        key, equals, value = each.partition("=")
        if not key or not equals:
            raise typer.BadParameter("expected KEY=VALUE", param_hint="--option")
        given[key] = value
    return open_storage(url, given)


def progress(*amounts: ProgressColumn) -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), *amounts, TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def print_json(document: dict[str, object]) -> None:
    """Print a document as JSON, in which characters that could control the terminal are escaped."""
    print(json.dumps(msgspec.to_builtins(document)))
