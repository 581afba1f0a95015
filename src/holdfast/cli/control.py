"""Commands that change a running query from outside, through the control that its page has with `Job(ui_control=…)`.

    holdfast update <url> trigger="every 1min" timeout=5min    changes checkpoint settings; `--keep`: permanently
    holdfast trigger <url>                                     takes a checkpoint
    holdfast savepoint <url> <folder>                          takes a savepoint
    holdfast retry <url> <split>                               tries a failed split again at once
    holdfast skip <url> <split> <position>                     puts a row of a failing split aside
    holdfast stop <url> [--savepoint <folder>]                 stops the query

The token comes from the variable HOLDFAST_TOKEN or from a file (`--token-file`), because other users of a machine can
read command lines.
"""

import json
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.cli.common import say, told
from holdfast.errors import HoldfastError
from holdfast.ui.screen import ANSWER_S_MAX
from holdfast.ui.site import CONTROL, TOKEN_VARIABLE

POLL_S = 0.3
"""Seconds between two questions about a command that has not ended yet."""

Url = Annotated[str, typer.Argument(help="The page of a running query: query.uiUrl.")]
TokenFile = Annotated[
    Path | None,
    typer.Option("--token-file", help=f"A file with the token; else it is taken from {TOKEN_VARIABLE}."),
]
Token = Annotated[str, typer.Option(envvar=TOKEN_VARIABLE, hidden=True)]
OfSource = Annotated[str | None, typer.Option(help="The split's source, if several sources have such a split.")]
Timeout = Annotated[str | None, typer.Option(help="Time for the savepoint, for example 30min.")]


def token_of(token: str, file: Path | None) -> str:
    """Return the token that a command uses; empty if there is none.

    Raises `HoldfastError` if the file cannot be read.
    """
    if file is None:
        return token
    try:
        return file.read_text().strip()
    except (OSError, ValueError) as error:
        raise HoldfastError(f"--token-file {file}: {error}") from error


def update(
    url: Url,
    settings: Annotated[
        list[str] | None, typer.Argument(metavar="NAME=VALUE…", help="Fields of CheckpointConfig.")
    ] = None,
    keep: Annotated[bool, typer.Option("--keep", help="Later starts of the job apply the settings too.")] = False,
    forget: Annotated[
        bool, typer.Option("--forget", help="First undo all that was kept: the settings in the job's code apply again.")
    ] = False,
    token_file: TokenFile = None,
    token: Token = "",
) -> None:
    """Change checkpoint settings of a running query, for example trigger="every 1min" timeout=5min."""
    given: dict[str, Any] = {}
    for each in settings or []:
        name, equals, value = each.partition("=")
        if not equals:
            raise typer.BadParameter(f"{each!r}: expected NAME=VALUE", param_hint="settings")
        given[name] = _value(value)
    if not given and not forget:
        raise typer.BadParameter("expected NAME=VALUE, or --forget", param_hint="settings")
    _carry_out(url, token, token_file, command="update", settings=given, keep=keep, forget=forget)


def trigger(url: Url, token_file: TokenFile = None, token: Token = "") -> None:
    """Take a checkpoint of a running query now."""
    _carry_out(url, token, token_file, command="trigger")


def savepoint(
    url: Url,
    folder: Annotated[str, typer.Argument(help="URL of the savepoint's folder.")],
    timeout: Timeout = None,
    token_file: TokenFile = None,
    token: Token = "",
) -> None:
    """Take a savepoint of a running query."""
    _carry_out(url, token, token_file, command="savepoint", folder=folder, timeout=timeout)


def retry(
    url: Url,
    split: Annotated[str, typer.Argument(help="The split, as the page shows it.")],
    source: OfSource = None,
    token_file: TokenFile = None,
    token: Token = "",
) -> None:
    """Try a split that has failed, or is parked, again at once."""
    _carry_out(url, token, token_file, command="retry", split=split, source=source)


def skip(
    url: Url,
    split: Annotated[str, typer.Argument(help="The split, as the page shows it.")],
    position: Annotated[int, typer.Argument(help="Position of the row.")],
    source: OfSource = None,
    token_file: TokenFile = None,
    token: Token = "",
) -> None:
    """Write the row at a position of a failing split to the dead letters, and go on behind it."""
    _carry_out(url, token, token_file, command="skip", split=split, position=position, source=source)


def stop(
    url: Url,
    savepoint: Annotated[str | None, typer.Option(help="URL of a folder: take a savepoint at the end.")] = None,
    timeout: Timeout = None,
    token_file: TokenFile = None,
    token: Token = "",
) -> None:
    """Stop a running query, with a savepoint if its folder is given."""
    _carry_out(url, token, token_file, command="stop", savepoint=savepoint, timeout=timeout)


def _value(text: str) -> str | int | None:
    if text == "None":
        return None
    return int(text) if text.isdecimal() else text


def _carry_out(url: str, token: str, file: Path | None, **command: Any) -> None:
    """Send a command to the query, wait for its outcome, and print it. Exit code 1 if it failed."""
    with told():
        address, token = url.partition("?")[0].rstrip("/") + CONTROL, token_of(token, file)
        if not token:
            raise HoldfastError(
                f"no token: set {TOKEN_VARIABLE} or give --token-file; a query with Job(ui_control=True) prints its "
                "token when it starts"
            )
        number = _answer(address, token, json.dumps(command).encode())["id"]
        say(_outcome(f"{address}?id={number}", token, is_stop=command["command"] == "stop"))


def _outcome(url: str, token: str, is_stop: bool) -> str:
    """Wait for a command's outcome. When a query stops, its control disappears too."""
    while True:
        try:
            outcome = _answer(url, token, None)
        except _Away:
            if is_stop:
                return "the query has ended"
            raise
        if outcome["done"]:
            if outcome["error"] is not None:
                raise HoldfastError(outcome["error"])
            return str(outcome["result"])
        time.sleep(POLL_S)


class _Away(HoldfastError):
    """Nothing answers at the address."""


def _answer(url: str, token: str, body: bytes | None) -> Any:
    request = urllib.request.Request(url, body, {"Authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S_MAX) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as refused:
        with refused:
            text = refused.read().decode(errors="replace").strip()
        raise HoldfastError(f"{url}: {refused.code}: {_reason(text)}") from None
    except (OSError, ValueError) as error:
        raise _Away(f"{url}: no running query answers there: {error}; give the URL that query.uiUrl names") from error


def _reason(text: str) -> str:
    try:
        return str(json.loads(text)["error"])
    except (ValueError, KeyError, TypeError):
        return f"{text}; the query was started without Job(ui_control=…)"
