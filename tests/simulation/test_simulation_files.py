"""Files that a simulated process leaves on its machine when it is killed."""

from pathlib import Path

from simulation_files import files_end_with_processes
from simulation_runtime import Runtime
from simulation_threads import running

from holdfast.state.base_rocksdb import FOLDER_PREFIX, RocksDBBase
from holdfast.state.own_folder import sweep


def test_a_process_that_is_killed_has_no_database_open_once_its_folder_may_go(tmp_path: Path) -> None:
    runtime = Runtime(0)
    made: list[RocksDBBase] = []
    with running(runtime, 0), files_end_with_processes():
        process = runtime.process("p0")

        def live() -> None:
            made.append(RocksDBBase(str(tmp_path)))
            made[0].write([b"k"], [b"v"], [])
            runtime.sleep(1000)

        runtime.spawn(live, "main", process)
        runtime.run(lambda: made, 1, "a database")
        database = made[0]._db
        sweep(FOLDER_PREFIX, str(tmp_path))
        assert database.get(b"k") == b"v" and made[0].folder.exists(), "it lives"
        process.kill()
        files = list((made[0].folder / "db").glob("*.sst"))
        assert files, "what was in memory is written out where that can be done"
        sweep(FOLDER_PREFIX, str(tmp_path))
        assert not made[0].folder.exists()
