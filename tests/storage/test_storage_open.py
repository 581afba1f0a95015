"""Opening a store: refusals, and facts that messages never hold."""

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from holdfast.errors import CorruptObject, SettingsError, StorageError
from holdfast.storage import obstore_store
from holdfast.storage.retrying import RetryingStore
from holdfast.storage.store import open_store


@pytest.mark.parametrize(
    "url",
    ["ftp://server/x", "/data/x", "data", "", "file://relative/x", "s3:///folder", "https://bucket.example/x"],
)
def test_a_url_that_is_not_understood_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="expected"):
        open_store(url)


@pytest.mark.parametrize("url", ["out", "./out", "file:out", "file://out"])
def test_a_relative_path_is_refused_with_the_setting_and_the_url_of_its_folder(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SettingsError, match=r"^ParquetSink url '") as caught:
        open_store(url, whose="ParquetSink url")
    assert f"'{(tmp_path / 'out').as_uri()}'" in str(caught.value)


@pytest.mark.parametrize("url", ["s3://key:hidden-password@bucket/x", "s3://bucket/x?sig=hidden-password"])
def test_credentials_in_a_url_are_refused_and_not_repeated(url: str) -> None:
    with pytest.raises(SettingsError, match="storage_options") as caught:
        open_store(url)
    assert "hidden-password" not in str(caught.value)


def test_an_unknown_option_is_named() -> None:
    with pytest.raises(SettingsError, match="no_such_option"):
        open_store("s3://bucket/x", {"no_such_option": "1"})


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(StorageError, match="file/below"):
        open_store(f"file://{tmp_path}/file/below")


def test_a_store_out_of_reach_is_an_io_error_without_credentials() -> None:
    secret = "a-very-secret-key"
    store = open_store(
        "s3://bucket/x",
        {
            "aws_access_key_id": "id",
            "aws_secret_access_key": secret,
            "aws_session_token": "a-token-of-mine",
            "aws_endpoint": "http://127.0.0.1:1",
            "AWS_ALLOW_HTTP": "true",
            "aws_region": "nowhere",
            "connect_timeout": "1s",
        },
    )
    with pytest.raises(StorageError, match="journal/1") as caught:
        store.get("journal/1")
    chain = f"{caught.value!r} {caught.value.__cause__!r}"
    assert secret not in chain
    assert "a-token-of-mine" not in chain


def test_the_s3_store_says_which_object_it_could_not_reach(s3_options: dict[str, str]) -> None:
    store = open_store("s3://no-such-bucket/x", s3_options)
    with pytest.raises(StorageError, match="journal/1"):
        store.put("journal/1", b"")


def test_memory_stores_of_different_urls_are_apart() -> None:
    open_store("memory://test-apart-1").put("a", b"1")
    assert open_store("memory://test-apart-2").list("") == []


def pages_of(monkeypatch: pytest.MonkeyPatch, pages: Iterator[list[dict[str, object]]]) -> None:
    monkeypatch.setattr(obstore_store.obstore, "list", lambda *given, **settings: pages)


def test_a_listing_that_comes_back_to_its_beginning_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    page = [{"path": "in/a", "size": 1, "last_modified": datetime.now(UTC)}]
    store = open_store("memory://endless-listing")
    pages_of(monkeypatch, itertools.repeat(page))
    with pytest.raises(StorageError, match="cannot list 'in/': the listing comes again to 'in/a' after 1 objects"):
        store.list("in/")


def test_a_listing_without_an_end_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(obstore_store, "LISTED_MAX", 100)
    store = open_store("memory://long-listing")
    pages_of(
        monkeypatch,
        ([{"path": f"in/{n}", "size": 1, "last_modified": datetime.now(UTC)}] for n in itertools.count()),
    )
    with pytest.raises(StorageError, match="the listing has more than 100 objects"):
        store.list("in/")


def test_an_object_whose_name_cannot_be_read_is_named_and_not_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def refuse(*given: object, **settings: object) -> None:
        calls.append(given)
        raise GenericError('Encountered object with invalid path: Path "in//x" contained empty path segment')

    store = RetryingStore(open_store("memory://odd-names"), wait=lambda seconds: None)
    monkeypatch.setattr(obstore_store.obstore, "list", refuse)
    with pytest.raises(CorruptObject, match=r'Path "in//x" .*rename or delete it'):
        store.list("in/")
    assert len(calls) == 1


def test_an_endpoint_whose_port_cannot_be_read_is_refused_without_its_password() -> None:
    with pytest.raises(SettingsError, match=r"'aws_endpoint'.* is no URL") as refused:
        open_store("s3://bucket/x", {"aws_endpoint": "http://user:se/cret@127.0.0.1:1"})
    assert "cret" not in str(refused.value)
