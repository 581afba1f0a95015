"""Opening a store: refusals, and facts that messages never hold."""

from pathlib import Path

import pytest

from holdfast.errors import SettingsError, StorageError
from holdfast.storage.store import open_store


@pytest.mark.parametrize(
    "url",
    ["hdfs://namenode/x", "/data/x", "data", "", "file://relative/x", "s3:///folder", "https://bucket.example/x"],
)
def test_a_url_that_is_not_understood_is_refused(url: str) -> None:
    with pytest.raises(SettingsError, match="expected"):
        open_store(url)


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
