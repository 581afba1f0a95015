"""Commands over HTTP that change a running query. Only holders of the control token can send them.

    POST /api/v1/control          a command, as JSON: {"command": "savepoint", "folder": "s3://…"}   ──► {"id": 7}
    GET  /api/v1/control?id=7     {"done": true, "result": "…", "error": null}

A command runs on a thread of its own, since a savepoint may take long. The token is read only from the header
`Authorization: Bearer …`, which no page of another site can send, and which does not appear in logs and histories.
"""

import itertools
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from holdfast.checkpoint.trigger_texts import trigger_of
from holdfast.errors import HoldfastError, described
from holdfast.quantities import duration_s
from holdfast.ui.pages import JSON, Application, Environment, StartResponse, answer, bearer, is_token

BODY_BYTES_MAX = 64 << 10
"""Bound on a command's length in bytes."""
RUNNING_MAX = 8
"""Bound on the commands that run at a time; further commands are refused until a command has ended."""
KEPT_MAX = 100
"""Bound on the outcomes that are kept for later questions; a higher value keeps older outcomes."""

Setting = str | int | float | None


class Controlled(Protocol):
    """The calls of a JobMaster that commands make."""

    def trigger_checkpoint(self) -> Any: ...
    def savepoint(self, url: str, storage_options: Mapping[str, str], timeout_s: float | None) -> Any: ...
    def stop_with_savepoint(self, url: str, storage_options: Mapping[str, str], timeout_s: float | None) -> Any: ...
    def stop(self) -> None: ...
    def retry(self, split: str, source: str | None, skipped: int | None = None) -> None: ...
    def update(self, checkpoint: None, changes: Mapping[str, object], keep: bool, forget: bool) -> None: ...


class Command(msgspec.Struct, tag_field="command", forbid_unknown_fields=True):
    """A command; its fields are its arguments."""


class UpdateCommand(Command, tag="update"):
    """Change checkpoint settings, by name; `trigger` is a text (`trigger_of`). With `keep`, later starts apply the
    settings too. `forget` first restores the job's own values of the settings that were kept before."""

    settings: dict[str, Setting] = {}
    keep: bool = False
    forget: bool = False

    def run(self, query: Controlled, options: Mapping[str, str]) -> str:
        trigger = self.settings.get("trigger")
        given = {} if trigger is None else {"trigger": trigger_of(str(trigger))}
        query.update(None, {**self.settings, **given}, self.keep, self.forget)
        forgot = ["forgot the settings that were kept"] if self.forget else []
        verb = "changed for this and later starts:" if self.keep else "changed"
        return "; ".join([*forgot, *([f"{verb} {', '.join(self.settings)}"] if self.settings else [])]) or "no change"


class TriggerCommand(Command, tag="trigger"):
    """Take a checkpoint of everything committed so far."""

    def run(self, query: Controlled, options: Mapping[str, str]) -> str:
        return f"checkpoint {query.trigger_checkpoint().result()} is complete"


class SavepointCommand(Command, tag="savepoint"):
    """Take a checkpoint and copy it into a folder."""

    folder: str
    timeout: str | float | None = None

    def run(self, query: Controlled, options: Mapping[str, str]) -> str:
        return f"savepoint {query.savepoint(self.folder, options, _limit_s(self.timeout)).url} is complete"


class RetryCommand(Command, tag="retry"):
    """Try a split that fails or is parked again at once."""

    split: str
    source: str | None = None

    def run(self, query: Controlled, options: Mapping[str, str]) -> str:
        query.retry(self.split, self.source)
        return f"split {self.split!r} is tried again"


class SkipCommand(Command, tag="skip"):
    """Write a row of a failing split to the dead letters."""

    split: str
    position: int
    source: str | None = None

    def run(self, query: Controlled, options: Mapping[str, str]) -> str:
        query.retry(self.split, self.source, self.position)
        return f"position {self.position} of split {self.split!r} is put aside"


class StopCommand(Command, tag="stop"):
    """Stop the query, with a savepoint if its folder is given."""

    savepoint: str | None = None
    timeout: str | float | None = None

    def run(self, query: Controlled, options: Mapping[str, str]) -> str:
        if self.savepoint is None:
            query.stop()
        else:
            query.stop_with_savepoint(self.savepoint, options, _limit_s(self.timeout))
        return "the query has ended"


AnyCommand = UpdateCommand | TriggerCommand | SavepointCommand | RetryCommand | SkipCommand | StopCommand
_decoder = msgspec.json.Decoder(AnyCommand)


class CommandOutcome(msgspec.Struct):
    """The outcome of a command so far."""

    done: bool = False
    result: str | None = None
    error: str | None = None


class RemoteControl:
    """A WSGI application. `query` returns the JobMaster, or None before it has started; `options` are the options of
    its storage."""

    def __init__(self, query: Callable[[], Controlled | None], options: Mapping[str, str], token: str) -> None:
        self._query = query
        self._options = options
        self._token = token
        self._lock = threading.Lock()
        self._numbers = itertools.count(1)
        self._outcomes: dict[int, CommandOutcome] = {}

    def __call__(self, request: Environment, start_response: StartResponse) -> Iterable[bytes]:
        if not is_token(bearer(request), self._token):
            return _told(start_response, "403 Forbidden", "give the control token: Authorization: Bearer ...")
        if request["REQUEST_METHOD"] == "POST":
            return self._begin(request, start_response)
        asked = parse_qs(request.get("QUERY_STRING", "")).get("id", [""])[0]
        outcome = self._outcomes.get(int(asked)) if asked.isdecimal() and len(asked) < 10 else None
        if outcome is None:
            return _told(start_response, "404 Not Found", "no command has this id, or its outcome was discarded")
        return answer(start_response, "200 OK", JSON, msgspec.json.encode(outcome))

    def _begin(self, request: Environment, start_response: StartResponse) -> Iterable[bytes]:
        length = str(request.get("CONTENT_LENGTH") or "")
        if not length.isdecimal() or len(length) > 9 or int(length) > BODY_BYTES_MAX:
            text = f"a command has a Content-Length of at most {BODY_BYTES_MAX} bytes"
            return _told(start_response, "413 Content Too Large", text)
        try:
            command = _decoder.decode(request["wsgi.input"].read(int(length)))
        except (msgspec.DecodeError, RecursionError) as error:
            return _told(start_response, "400 Bad Request", f"this is no command: {error}")
        query = self._query()
        if query is None:
            return _told(start_response, "503 Service Unavailable", "the job is starting")
        number = self._note()
        if number is None:
            return _told(start_response, "429 Too Many Requests", f"{RUNNING_MAX} commands are running; wait for one")
        name = f"holdfast-control-{number}"
        threading.Thread(target=self._run, args=(number, command, query), name=name, daemon=True).start()
        return answer(start_response, "202 Accepted", JSON, msgspec.json.encode({"id": number}))

    def _note(self) -> int | None:
        """Return the number for a new command, or None if too many commands are running."""
        with self._lock:
            if sum(not each.done for each in self._outcomes.values()) >= RUNNING_MAX:
                return None
            number = next(self._numbers)
            self._outcomes[number] = CommandOutcome()
            ended = [each for each, outcome in self._outcomes.items() if outcome.done]
            for each in ended[: max(0, len(self._outcomes) - KEPT_MAX)]:
                del self._outcomes[each]
            return number

    def _run(self, number: int, command: AnyCommand, query: Controlled) -> None:
        try:
            outcome = CommandOutcome(True, result=command.run(query, self._options))
        except (HoldfastError, TimeoutError) as error:
            outcome = CommandOutcome(True, error=described(error))
        except Exception as error:
            outcome = CommandOutcome(True, error=f"the command failed: {described(error)}")
        with self._lock:
            self._outcomes[number] = outcome


def controlling(pages: Application, control: Application | None, path: str) -> Application:
    """Add the control, which has a token of its own, to the guarded pages."""

    def answered(request: Environment, start_response: StartResponse) -> Iterable[bytes]:
        application = control if control is not None and request["PATH_INFO"] == path else pages
        return application(request, start_response)

    return answered


def _limit_s(timeout: str | float | None) -> float | None:
    return None if timeout is None else duration_s(timeout, "timeout")


def _told(start_response: StartResponse, status: str, text: str) -> Iterable[bytes]:
    return answer(start_response, status, JSON, msgspec.json.encode({"error": text}))
