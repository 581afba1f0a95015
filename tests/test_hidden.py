"""No message, log record or `repr` shows a secret or a part of it, wherever it was given, whatever a library says."""

import logging
import os
import traceback
from collections.abc import Callable
from typing import Any
from unittest import mock
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import holdfast as hf
from holdfast import hidden
from holdfast.errors import HoldfastError, StorageError
from holdfast.hidden import CHARACTERS_MIN, SECRETS_MAX, hide, hide_url, remember, remember_environment
from holdfast.printable import logger
from holdfast.sources.postgres.server import Server
from holdfast.storage.store import open_store
from holdfast.testing import TestSource

MARK = "Zq"
"""The beginning of each piece of a password: it comes up nowhere else."""

PIECES = st.text("abcxyz019", min_size=3, max_size=6).map(MARK.__add__)
DELIMITERS = st.sampled_from(list("/@:?#%&=+!$,;'\"\\|~^<>[]{} ."))


@st.composite
def passwords(draw: st.DrawFn) -> str:
    """Passwords whose pieces libraries might take for hosts, ports, paths or parameters."""
    found = draw(PIECES)
    for _ in range(draw(st.integers(0, 3))):
        found += draw(DELIMITERS) + draw(PIECES)
    return found


def told(call: Callable[[], object]) -> str:
    """All that a caller is shown: the error, its `repr`, and the traceback with its causes."""
    try:
        return repr(call())
    except HoldfastError as error:
        lines = traceback.TracebackException.from_exception(error, capture_locals=False).format(chain=True)
        shown = [line for line in lines if not line.startswith("  File ")]
        return f"{error} {error!r} {error.args} {''.join(shown)}"


def job(storage: str) -> hf.Job:
    made = hf.Job(None, name="hidden", storage=storage)
    made.read(TestSource([[{"k": 1}]], "k BIGINT")).write(hf.MemorySink())
    return made


def options(**more: str) -> dict[str, str]:
    keys = {"aws_access_key_id": "id", "aws_secret_access_key": "key", "aws_region": "r", "allow_http": "true"}
    return {**keys, "aws_endpoint": "http://127.0.0.1:1", "connect_timeout": "1s", **more}


URLS: dict[str, Callable[[str], str]] = {
    "s3": lambda password: f"s3://user:{password}@bucket/folder",
    "gs": lambda password: f"gs://user:{password}@bucket/folder",
    "az": lambda password: f"az://user:{password}@container/folder",
    "abfss": lambda password: f"abfss://container:{password}@account.dfs.core.windows.net/folder",
    "file": lambda password: f"file://user:{password}@host/folder",
    "https": lambda password: f"https://user:{password}@host:9000/folder",
    "query": lambda password: f"s3://bucket/folder?sig={quote(password)}",
}
USES: dict[str, Callable[[str], object]] = {
    "open_store": open_store,
    "job": lambda url: repr(job(url)) + str(job(url)._repr_html_()),
    "start": lambda url: hf.testing.run(job(url)),
    "parquet": lambda url: hf.ParquetSink(url),
    "delta": lambda url: hf.DeltaSink(url),
    "files": lambda url: hf.FileSource(url, schema="k BIGINT"),
    "read files": lambda url: hf.FileSource(url, schema="k BIGINT", format="json").schema(),
    "a sink that starts": lambda url: hf.testing.run(job_into(hf.ParquetSink(url))),
    "a table that starts": lambda url: hf.testing.run(job_into(hf.DeltaSink(url))),
}


def job_into(sink: Any) -> hf.Job:
    made = hf.Job(None, name="hidden", storage=f"memory://hidden-{id(sink)}")
    made.read(TestSource([[{"k": 1}]], "k BIGINT")).write(sink)
    return made


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", URLS)
@settings(max_examples=4, deadline=None)
@given(password=passwords())
def test_a_password_in_a_url_is_never_shown(kind: str, use: str, password: str) -> None:
    for form in (password, quote(password, safe="")):
        assert MARK not in told(lambda form=form: USES[use](URLS[kind](form)))  # type: ignore[misc]


DSNS: dict[str, Callable[[str], str]] = {
    "url": lambda password: f"postgresql://user:{password}@127.0.0.1:1/db",
    "escaped": lambda password: f"postgres://user:{quote(password, safe='')}@127.0.0.1:1/db",
    "parameter": lambda password: f"postgresql://127.0.0.1:1/db?user=u&password={password}",
    "words": lambda password: f"host=127.0.0.1 port=1 password={password} dbname=db",
    "quoted": lambda password: "host=127.0.0.1 port=1 password='{}'".format(
        password.replace("\\", r"\\").replace("'", r"\'")
    ),
}


@pytest.mark.parametrize("form", DSNS)
@settings(max_examples=20, deadline=None)
@given(password=passwords())
def test_a_password_in_a_dsn_is_never_shown(form: str, password: str) -> None:
    shown = told(Server(DSNS[form](password), "source 'in'").connect)
    assert MARK not in shown
    assert "source 'in'" in shown


@settings(max_examples=15, deadline=None)
@given(secret=passwords(), where=st.sampled_from(["aws_secret_access_key", "aws_session_token", "endpoint"]))
def test_an_option_of_a_store_is_never_shown(secret: str, where: str) -> None:
    endpoint = f"http://user:{quote(secret, safe='')}@127.0.0.1:1"
    more = {"aws_endpoint": endpoint} if where == "endpoint" else {where: secret}
    assert MARK not in told(lambda: open_store("s3://bucket/folder", options(**more)).get("journal/1"))


@settings(max_examples=100, deadline=None)
@given(secret=passwords(), form=st.sampled_from([str, quote, quote_plus, repr, lambda text: quote(text, safe="")]))
def test_a_secret_of_the_environment_is_stripped_from_whatever_a_library_says(
    secret: str, form: Callable[[str], str]
) -> None:
    with mock.patch.dict(os.environ, {"AWS_SESSION_TOKEN": secret}):
        remember_environment()
    texts = (f"invalid token {form(secret)}", f"<Token-0>{form(secret)}</Token-0>", f"x={form(secret)}&y", form(secret))
    assert not any(MARK in str(StorageError(text)) for text in texts)


def test_a_log_record_and_its_traceback_hold_no_secret(caplog: pytest.LogCaptureFixture) -> None:
    remember("a-secret-of-mine-1")
    formatter = logging.Formatter()
    with caplog.at_level(logging.WARNING):
        try:
            raise ValueError("refused: a-secret-of-mine-1")
        except ValueError as error:
            logger("holdfast.tests").warning("failed: %s", error, exc_info=True)
    (record,) = caplog.records
    text = formatter.format(record)
    assert "a-secret-of-mine-1" not in text and "refused: ***" in text


@pytest.mark.parametrize(
    "text",
    [
        "s3://bucket/a@b.parquet is gone",
        "http://127.0.0.1:9000/bucket/a@b",
        "abfss://container@account.dfs.core.windows.net/x",
        "the job's storage did not answer: an id of administration",
        "checkpoint=CheckpointConfig(trigger=every('10s')) and key_by=('secretary',)",
        "file:///data/a:b@c",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    remember("id", "min", "ation", "secret", "key")
    assert hide(text) == hide_url(text) == text


def test_a_word_is_hidden_as_a_word_alone() -> None:
    remember("hush", "hushpuppies")
    assert hide("hush, hushed: 'hush' hushpuppies") == "***, hushed: '***' ***"
    assert len("hush") == CHARACTERS_MIN


def test_remembered_secrets_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "_secrets", {})
    remember(*(f"secret-number-{number}" for number in range(SECRETS_MAX + 10)))
    assert len(hidden._secrets) == SECRETS_MAX
    assert hide("secret-number-9") == "secret-number-9"
    assert hide(f"secret-number-{SECRETS_MAX + 9}") == "***"


@pytest.fixture(autouse=True)
def _nothing_is_remembered_after_a_test(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hidden, "_secrets", {})
