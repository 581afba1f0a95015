"""A job whose logs and materialized tables lie in other storages than its own."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from job_kit import Feed, own_logs
from savepoints_kit import LIVE, Folders, made, put, sums
from typer.testing import CliRunner

import holdfast as hf
from holdfast.cli import app
from holdfast.journal.other_storages import open_job_store
from holdfast.maintenance.verify import verify
from holdfast.testing import start


@pytest.fixture
def url(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def elsewhere(url: Folders, **settings: Any) -> dict[str, Any]:
    return {"changelog_storage": url("quick"), "shared_storages": [url("a"), url("b")]} | settings


def run(url: Folders, feed: Feed, values: tuple[int, ...], **settings: Any) -> int:
    """Start the job, process values, each with a checkpoint, and stop; returns the sum of all values."""
    sink = hf.MemorySink(name="out")
    query = start(made(url("main"), feed, sink, changelog=own_logs(log_handles_max=1).changelog, **settings), LIVE)
    for value in values:
        put(query, feed, value)
        query.trigger_checkpoint(timeout=30)
    query.stop()
    return int(sums(sink))


def areas(url: Folders, name: str) -> set[str]:
    """The top folders and objects of a storage that have files."""
    return {path.relative_to(url.root / name).parts[0] for path in (url.root / name).rglob("*") if path.is_file()}


def test_logs_and_tables_lie_elsewhere_and_everybody_finds_them_by_the_job_s_storage(url: Folders) -> None:
    feed = Feed(name="feed")
    assert run(url, feed, (1, 2, 4), **elsewhere(url)) == 7
    assert not areas(url, "main") & {"dstl", "gathered", "shared"}
    assert areas(url, "quick") <= {"dstl", "gathered", "owner"} and areas(url, "quick") & {"dstl", "gathered"}
    assert "shared" in areas(url, "a") | areas(url, "b")
    assert hf.read_state(url("main"), "sums").column("total.sum").to_pylist() == [7]
    assert verify(open_job_store(url("main"))).ok
    for command in (["verify"], ["state"], ["gc", "--dry-run"], ["checkpoints"]):
        result = CliRunner().invoke(app, [*command, url("main")])
        assert result.exit_code == 0, result.output


def test_a_start_with_other_settings_reads_the_objects_of_earlier_starts_and_clean_up_deletes_them(
    url: Folders,
) -> None:
    feed = Feed(name="feed")
    run(url, feed, (1, 2), **elsewhere(url))
    assert run(url, feed, (4,)) == 7
    assert run(url, feed, (8, 16), shared_storages=[url("b")]) == 31
    result = CliRunner().invoke(app, ["gc", url("main")])
    assert result.exit_code == 0, result.output
    assert areas(url, "quick") == areas(url, "a") == {"owner"}
    assert verify(open_job_store(url("main"))).ok
    shutil.rmtree(url.root / "quick")
    assert run(url, feed, (32,)) == 63


def test_a_savepoint_is_complete_in_itself_and_a_job_from_it_may_keep_its_objects_elsewhere(url: Folders) -> None:
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")
    query = start(made(url("main"), feed, sink, changelog=own_logs().changelog, **elsewhere(url)), LIVE)
    put(query, feed, 1, 2)
    query.savepoint(url("save"))
    query.stop()
    for name in ("main", "quick", "a", "b"):
        shutil.rmtree(url.root / name, ignore_errors=True)
    assert hf.read_state(url("save"), "sums").column("total.sum").to_pylist() == [3]
    again = run(url, feed, (4,), start_from=url("save"), **elsewhere(url))
    assert again == 7
    assert run(url, feed, (8,), **elsewhere(url)) == 15
    assert verify(open_job_store(url("main"))).ok


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"changelog_storage": "main"}, "changelog_storage at .* and the job's storage at .* both are the same folder"),
        ({"changelog_storage": "main/logs"}, "the first is inside the second"),
        ({"shared_storages": ["a", "b", "a"]}, "shared_storages at .* share a folder"),
        ({"changelog_storage": "a", "shared_storages": ["a/deeper"]}, "share a folder"),
    ],
)
def test_storages_that_share_a_folder_are_refused(url: Folders, settings: dict[str, Any], found: str) -> None:
    named = {
        key: url(value) if isinstance(value, str) else [url(each) for each in value] for key, value in settings.items()
    }
    with pytest.raises(hf.JobRefused, match=found):
        start(made(url("main"), Feed(name="feed"), hf.MemorySink(name="out"), **named), LIVE)


def test_a_sink_does_not_write_into_another_storage_of_the_job(url: Folders) -> None:
    job = hf.Job(None, name="test", storage=url("main"), changelog_storage=url("quick"))
    job.read(Feed(name="feed")).write(hf.ParquetSink(url("quick/out"), name="out"))
    with pytest.raises(hf.JobRefused, match=r"sink 'out' .* and changelog_storage .* share a folder"):
        start(job, LIVE)


def test_a_copy_of_the_job_s_folder_does_not_take_over_its_other_storages(url: Folders) -> None:
    feed = Feed(name="feed")
    run(url, feed, (1,), **elsewhere(url))
    shutil.copytree(url.root / "main", url.root / "copy")
    job = made(url("copy"), feed, hf.MemorySink(name="out"), **elsewhere(url))
    with pytest.raises(hf.JobRefused, match=r"changelog_storage .* whose storage was copied or moved"):
        start(job, LIVE)
    result = CliRunner().invoke(app, ["gc", url("copy")])
    assert result.exit_code == 1 and "copied or moved" in result.output
    assert hf.read_state(url("copy"), "sums").column("total.sum").to_pylist() == [1], "who only reads may read"


def test_another_storage_that_is_named_as_the_job_s_own_says_whose_it_is(url: Folders) -> None:
    run(url, Feed(name="feed"), (1,), **elsewhere(url))
    with pytest.raises(hf.JobRefused, match=r"holds logs or tables of job id .* whose storage is file:.*main"):
        hf.read_state(url("quick"), "sums")
    with pytest.raises(hf.JobRefused, match="name a folder of its own"):
        start(made(url("quick"), Feed(name="feed"), hf.MemorySink(name="out")), LIVE)


@pytest.mark.parametrize(
    ("settings", "found"),
    [
        ({"changelog_storage": ""}, "changelog_storage=''"),
        ({"changelog_storage": Path("/logs")}, "changelog_storage=PosixPath"),
        ({"shared_storages": "s3://bucket/tables"}, "shared_storages='s3://bucket/tables' .* a list of URLs"),
        ({"shared_storages": [""]}, "shared_storages has ''"),
        ({"shared_storages": [f"s3://b/{number}" for number in range(65)]}, "has 65 URLs; allowed: at most 64"),
    ],
)
def test_values_that_are_no_urls_are_refused(settings: dict[str, Any], found: str) -> None:
    with pytest.raises(hf.SettingsError, match=found):
        hf.Job(None, name="test", storage="memory://x", **settings)


def test_an_unknown_scheme_and_a_missing_storage_are_refused_at_the_start(url: Folders) -> None:
    for storage, error, found in (
        ("ftp://x/logs", hf.SettingsError, "changelog_storage 'ftp://x/logs'"),
        ("s3://bucket/logs", hf.StorageError, "s3://bucket/logs.* cannot be reached"),
    ):
        job = made(
            url("main"),
            Feed(name="feed"),
            hf.MemorySink(name="out"),
            changelog_storage=storage,
            storage_options={"changelog.aws_endpoint": "http://127.0.0.1:9", "changelog.allow_http": "true"}
            | {"changelog.aws_access_key_id": "x", "changelog.aws_secret_access_key": "y"},
        )
        with pytest.raises(error, match=found):
            start(job, LIVE)
    assert not (url.root / "main").exists() or areas(url, "main") == set()


def test_a_driver_in_waiting_follows_logs_in_another_storage(url: Folders) -> None:
    feed, sink = Feed(name="feed"), hf.MemorySink(name="out")
    leader = start(made(url("main"), feed, hf.MemorySink(name="out"), **elsewhere(url)), LIVE, standby=True)
    assert leader.await_lead(30)
    put(leader, feed, 1, 2)
    leader.trigger_checkpoint(timeout=30)
    waiting = start(made(url("main"), feed, sink), LIVE, standby=True, on_leader_stop="promote")
    leader.stop()
    assert waiting.await_lead(30)
    put(waiting, feed, 4)
    waiting.stop()
    assert sums(sink) == 7
