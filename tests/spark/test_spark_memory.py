"""Memory of TaskManagers is compared with the memory that Spark's settings grant; the settings alone, without a
session.
"""

import pytest
from host_kit import NamedHost

from holdfast.errors import JobRefused
from holdfast.settings import TaskManagerConfig
from holdfast.spark.memory import check_memory, spark_bytes


def test_a_limit_of_python_workers_below_the_task_managers_memory_is_refused() -> None:
    with pytest.raises(JobRefused, match=r"spark\.executor\.pyspark\.memory=512m"):
        check_memory(NamedHost("local[4]", executor__pyspark__memory="512m"), TaskManagerConfig(memory="1GB"), 1)


@pytest.mark.parametrize("master", ["yarn", "k8s://https://cluster"])
def test_a_container_without_room_beside_the_heap_is_refused(master: str) -> None:
    with pytest.raises(JobRefused, match="grants 384 MiB"):
        check_memory(NamedHost(master, executor__memory="2g"), TaskManagerConfig(memory="1GB"), 1)


@pytest.mark.parametrize(
    "settings",
    [
        {"executor__memoryOverhead": "1g"},
        {"executor__memory": "4g", "executor__memoryOverheadFactor": "0.4"},
        {"executor__memory": "4g", "kubernetes__memoryOverheadFactor": "0.25"},
        {"executor__minMemoryOverhead": "1024m"},
        {"executor__pyspark__memory": "1g"},
    ],
)
def test_room_granted_by_any_of_sparks_settings_is_enough(settings: dict[str, str]) -> None:
    check_memory(NamedHost("k8s://https://cluster", **settings), TaskManagerConfig(memory="1GB"), 1)


def test_where_spark_sets_no_limit_nothing_is_refused() -> None:
    check_memory(NamedHost("spark://host:7077"), TaskManagerConfig(memory="64GB"), 1)


def test_a_job_without_state_needs_no_memory_beside_the_heap() -> None:
    check_memory(NamedHost("yarn"), TaskManagerConfig(memory="64GB"), 0)


def test_sizes_are_read_as_spark_writes_them() -> None:
    assert [spark_bytes(text) for text in ("1g", "512m", "512", "1GiB", "2kb", "3b")] == [
        1 << 30,
        512 << 20,
        512 << 20,
        1 << 30,
        2048,
        3,
    ]
