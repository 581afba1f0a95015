"""Regions: the splits that fail and advance alone, and the reasons why others do not."""

import holdfast as hf
from holdfast.graph.build import build_program, without_spark
from holdfast.graph.program import Program
from holdfast.graph.regions import explained, regions_of


def program(declare) -> Program:  # type: ignore[no-untyped-def]
    job = hf.Job(None, name="regions", storage="memory://never-opened")
    declare(job)
    return build_program(job.declared, without_spark, job.dead_letters, job.state)


def numbers(job: hf.Job, name: str = "numbers") -> hf.Stream:
    return job.read(hf.SequenceSource(rows=100, splits=4, name=name))


def test_each_split_of_a_job_without_an_exchange_is_a_region() -> None:
    found = regions_of(program(lambda job: numbers(job).write(hf.NoopSink(name="out"))))
    assert (found.by_split, found.joined) == (("numbers",), ())


def test_an_operator_joins_the_whole_job_and_is_named_also_for_sources_that_never_reach_it() -> None:
    def declare(job: hf.Job) -> None:
        numbers(job).key_by("value").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="out"))
        numbers(job, "beside").write(hf.NoopSink(name="copied"))

    found = regions_of(program(declare))
    assert found.by_split == ()
    assert "'counts'" in found.joined[0]


def test_a_source_with_a_single_position_is_one_region_and_the_reason_names_it() -> None:
    class OnePosition(hf.SequenceSource):
        splits_stand_alone = False

    def declare(job: hf.Job) -> None:
        job.read(OnePosition(rows=10, splits=2, name="one")).write(hf.NoopSink(name="out"))
        numbers(job).write(hf.NoopSink(name="copied"))

    found = regions_of(program(declare))
    assert found.by_split == ("numbers",)
    assert len(found.joined) == 1 and "'one'" in found.joined[0]


def test_the_explanation_shows_each_leg_from_its_source_to_its_sink() -> None:
    def declare(job: hf.Job) -> None:
        numbers(job).key_by("value").aggregate(n=hf.count(), name="counts").write(hf.NoopSink(name="out"))

    lines = explained(program(declare)).splitlines()
    assert "  level 0: sequence source 'numbers' → select('value') → by value to operator 'counts'" in lines
    assert "  level 1: operator 'counts' → NoopSink 'out'" in lines
