"""Object names: built and parsed in a single module, strictly."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.errors import SettingsError
from holdfast.references import object_of
from holdfast.storage import names

JOB_ID = "0123456789abcdef" * 2


def test_every_name_that_is_built_is_parsed_back() -> None:
    built = {
        names.job(): names.JobName(),
        names.journal(17): names.JournalName(17),
        names.manifest(3, 4, 5): names.ManifestName(3, 4, 5),
        names.committables(3, 4, "delta-1"): names.CommittablesName(3, 4, "delta-1"),
        f"{names.staging_folder(JOB_ID, 3, 9)}/sink/0-a.arrow": names.StagedName(JOB_ID, 3, 9, "sink/0-a.arrow"),
    }
    for name, parsed in built.items():
        assert names.parse(name) == parsed
    segment = names.segment(3, "a source", 5)
    assert names.parse(segment) == names.SegmentName(3, "a source", 5, segment[-32:])
    part = names.segment_part(segment)
    assert names.parse(part) == names.SegmentName(3, "a source", 5, segment[-32:], part[-32:])
    changelog = names.parse(names.changelog_object(3, 7))
    assert isinstance(changelog, names.ChangelogName) and changelog[:2] == (3, 7)
    shared = names.parse(names.shared_object(3, 7))
    assert isinstance(shared, names.SharedName) and shared[:2] == (3, 7)
    assert isinstance(names.parse(names.source_chunk(3)), names.SourceName)
    assert names.parse(names.begun()) == names.BegunName()
    assert names.parse(names.history(7)) == names.HistoryName(7)
    assert names.parse(names.leader(7)) == names.LeaderName(7)
    assert names.parse(names.standby()) == names.StandbyName()
    assert isinstance(names.parse(names.probe(3)), names.ProbeName)


def test_a_part_of_a_gathered_object_has_a_reference_that_says_what_it_stands_for() -> None:
    name = names.gathered_object(3, 4)
    assert isinstance(names.parse(name), names.GatheredName)
    manifest = names.manifest_part(name, 16, 300, 5)
    assert names.part(manifest) == names.GatheredPart(name, 16, 300, names.ManifestName(3, 4, 5))
    sink = "a/b@1+2=tm-x"
    assert names.part(names.committables_part(name, 0, 7, sink)) == names.GatheredPart(
        name, 0, 7, names.CommittablesName(3, 4, sink)
    )
    assert object_of(manifest) == object_of(name) == name
    assert names.parse(manifest) is None, "a reference is no object's name: nothing deletes it"
    assert names.meaning(manifest) == names.meaning(names.manifest(3, 4, 5)) == names.ManifestName(3, 4, 5)
    for wrong in (name, manifest + "0", manifest.replace("gathered/", "dstl/"), manifest.replace("@16", "@-16")):
        assert names.part(wrong) is None, wrong


def test_a_manifest_behind_its_logs_has_a_reference_that_says_its_checkpoint() -> None:
    name = names.changelog_object(3, 7)
    manifest = names.manifest_behind_logs(name, 16, 300, 4, 5)
    assert names.part(manifest) == names.GatheredPart(name, 16, 300, names.ManifestName(3, 4, 5))
    assert (object_of(manifest), names.parse(manifest)) == (name, None)
    assert names.meaning(manifest) == names.meaning(names.manifest(3, 4, 5))
    sink = names.committables_part(name, 16, 300, "s").replace("=", f"={4:012d}/")
    in_gathered = manifest.replace(name, names.gathered_object(3, 4))
    for wrong in (sink, in_gathered, names.manifest_part(name, 16, 300, 5), manifest.replace("dstl/", "shared/")):
        assert names.part(wrong) is None, wrong


def test_objects_of_an_epoch_say_so() -> None:
    of_epoch = [
        names.gathered_object(6, 1),
        names.manifest(6, 1, 1),
        names.committables(6, 1, "s"),
        names.changelog_object(6, 1),
    ]
    of_epoch += [names.shared_object(6, 1), names.source_chunk(6), names.probe(6)]
    of_epoch.append(f"{names.staging_folder(JOB_ID, 6, 1)}/x")
    assert {names.epoch_of(name) for name in of_epoch} == {6}
    assert all(name.startswith(names.EPOCH_FOLDERS) for name in of_epoch)
    assert names.epoch_of("job") is None
    assert names.epoch_of(names.journal(6)) is None
    assert names.epoch_of(names.begun()) is None
    assert names.epoch_of(names.history(7)) is None
    assert names.epoch_of(names.leader(7)) is None


def test_changelog_and_shared_objects_lie_in_their_incarnations_folders() -> None:
    folders = names.incarnation_folders(2, 5)
    assert names.changelog_object(2, 5).startswith(folders[0])
    assert names.shared_object(2, 5).startswith(folders[1])


def test_fresh_names_are_never_the_same() -> None:
    assert len({names.changelog_object(1, 1) for _ in range(1_000)}) == 1_000


def test_names_sort_as_numbers_do() -> None:
    assert sorted([names.journal(100), names.journal(9), names.journal(10)])[0] == names.journal(9)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "jobs",
        "job/",
        "journal/",
        "journal/7",
        "journal/0000000000007",
        "journal/00000000000a",
        "journal/000000000007/x",
        "journal/000000000007\n",
        "journal/" + "\u0660" * 12,
        "manifests/000000000001/000000000002/000000000003",
        "manifests/000000000001/000000000002/tm-3",
        "manifests/000000000001/000000000002/sink-a=zz",
        "manifests/000000000001/000000000002/sink-",
        "manifests/000000000001/000000000002/sink-ü",
        "dstl/000000000001/000000000002/" + "A" * 32,
        "dstl/000000000001/" + "a" * 32,
        "staging/not-a-job/000000000001/000000000002/x",
        f"staging/{JOB_ID}/000000000001/000000000002/",
        "savepoints/000000000001/x",
        "holiday-pictures/1.jpg",
    ],
)
def test_what_this_module_cannot_have_built_is_unknown(name: str) -> None:
    assert names.parse(name) is None


@given(st.text(min_size=1, max_size=40))
def test_any_sink_name_is_escaped_into_one_segment_and_back(sink: str) -> None:
    try:
        name = names.committables(1, 2, sink)
    except SettingsError:
        assert len(sink.encode("utf-8", "surrogatepass")) * 3 > names.NAME_BYTES_MAX
        return
    assert name.count("/") == 3 and name.isascii()
    assert names.parse(name) == names.CommittablesName(1, 2, sink)


@given(st.text(max_size=40), st.text(max_size=40))
def test_different_names_are_escaped_differently(one: str, other: str) -> None:
    try:
        assert (names.escape(one) == names.escape(other)) == (one == other)
    except SettingsError:
        return


@pytest.mark.parametrize("number", [-1, 10**names.DIGITS])
def test_numbers_out_of_range_are_refused(number: int) -> None:
    with pytest.raises(ValueError, match=str(number)):
        names.journal(number)


def test_a_name_that_is_too_long_is_refused() -> None:
    with pytest.raises(SettingsError, match="expected 1 to 200"):
        names.escape("x" * 201)
