"""The code keeps its shape: which room may import which, where Spark and I/O stay, sizes, forbidden content."""

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "holdfast"

LEAF_NAMES = """
arrays availability back_off behind casts changelog_config clock code_shipping equality errors expressions
failpoints failure hidden ids json_rows kernels metrics packed_values ports printable python_values quantities
references schema store_prices value_fits watermarks
"""
"""Modules and rooms that every room may import, and that import only each other."""

MAY_IMPORT: dict[str, str] = {
    # Objects that a user builds and holds; the first call of `start()` reaches down to Spark.
    "__init__": "",
    "api": "autoscale calls functions job keyed_streams query settings sinks sources spark stored_state streams",
    "testing": "__init__ exchange formats functions graph job job_settings jobmaster journal protocol query schema "
    "settings sinks sources standby_query start_options storage taskmanager uploads",
    "job": "autoscale functions graph job_checks keyed_streams schema settings sinks sources spark sql start_options "
    "stored_state streams ui",
    "job_checks": "autoscale settings",
    "sql": "functions graph",
    "start_options": "settings stored_state",
    "streams": "calls functions graph keyed_streams schema sinks sources sql ui",
    "keyed_streams": "functions graph schema",
    "spark": "__init__ calls checkpoint exchange formats graph job_settings jobmaster journal leadership protocol "
    "query query_calls remote_query settings sinks sources standby_query storage stored_state taskmanager",
    "query": "jobmaster observe settings ui",
    "query_calls": "checkpoint formats jobmaster observe query",
    "remote_query": "formats jobmaster observe query query_calls settings ui",
    "standby_query": "jobmaster journal leadership query start_options",
    "job_settings": "checkpoint jobmaster settings storage ui",
    # Control: the JobMaster executes the decisions of the pure rules, and the journal remembers.
    "jobmaster": "autoscale checkpoint cleanup exchange execution formats functions graph journal observe protocol "
    "leadership recovery settings sinks sources state storage stored_state taskmanager ui uploads",
    # Observers: a running job as facts, and the page that shows them.
    "ui": "checkpoint.outcomes checkpoint.trigger_texts formats graph observe",
    "observe": "formats graph sources",
    "settings": "checkpoint.triggers",
    "checkpoint": "settings",
    "autoscale": "execution.places",
    "execution": "settings",
    "journal": "formats storage",
    "leadership": "formats journal storage",
    # Upkeep: rooms that look after stored data as a whole, for a JobMaster and for people.
    "cli": "__init__ cleanup formats journal maintenance storage stored_state testing ui",
    "stored_state": "formats journal recovery state storage",
    "cleanup": "checkpoint formats journal sinks sources storage",
    "maintenance": "formats journal recovery sinks sources storage",
    # Data: sources, exchange, TaskManager, state, changelog, uploads, formats, storage.
    "exchange": "calls functions graph protocol sinks sources state storage taskmanager",
    "followers": "formats functions graph protocol recovery state storage",
    "taskmanager": "followers formats functions graph materialize protocol recovery settings sources state storage "
    "uploads",
    "graph": "functions settings sinks sources",
    "functions": "sources state",
    "calls": "functions",
    "sinks": "sources storage",
    "sources": "schema state.compiled storage",
    "recovery": "formats state storage",
    "materialize": "changelog formats state storage uploads",
    "state": "settings",
    "changelog": "formats uploads",
    "uploads": "formats storage",
    "protocol": "formats functions sources storage",
    "formats": "storage",
    "storage": "",
    # Leaves, which every room may import.
    **dict.fromkeys(LEAF_NAMES.split(), ""),
}
"""Each room of `src/holdfast` (a folder, or a module beside them), and the rooms it may import besides the leaves."""

SUBROOMS: dict[str, str] = {
    # Each knows the modules of `functions/` itself; timers and expiry know no function that uses them.
    "functions.rows": "functions",
    "functions.timing": "functions functions.rows",
    "functions.aggregates": "functions functions.rows",
    "functions.process.shared": "functions functions.rows functions.timing",
    "functions.process.of_subtask": "functions functions.process.shared functions.rows functions.timing",
    "functions.process.by_row": "functions functions.process.of_subtask functions.process.shared functions.rows "
    "functions.timing",
    "functions.process.by_array": "functions functions.process.of_subtask functions.process.shared functions.rows "
    "functions.timing",
    "functions.process": "functions functions.process.by_array functions.process.by_row functions.process.of_subtask "
    "functions.process.shared functions.rows functions.timing",
    "functions.changes": "functions functions.aggregates functions.rows",
    "functions.windows": "functions functions.aggregates functions.changes functions.process "
    "functions.process.of_subtask functions.process.shared functions.rows functions.timing",
    "functions.joins": "functions functions.changes functions.rows functions.timing functions.windows",
    "functions.duplicates": "functions functions.changes functions.rows functions.timing functions.windows",
    "functions.over": "functions functions.aggregates functions.rows functions.timing functions.windows",
    "functions.ranking": "functions functions.changes functions.rows functions.windows",
    "functions": "",
    # A start makes the master, which holds all other parts.
    "jobmaster.starting": "jobmaster jobmaster.batches jobmaster.checkpoints jobmaster.processes",
    "jobmaster": "jobmaster.batches jobmaster.checkpoints jobmaster.processes jobmaster.savepoints",
    "jobmaster.batches": "jobmaster.checkpoints jobmaster.loops jobmaster.processes",
    "jobmaster.savepoints": "jobmaster.batches jobmaster.checkpoints jobmaster.processes",
    "jobmaster.checkpoints": "jobmaster.loops jobmaster.processes",
    "jobmaster.processes": "",
    "jobmaster.loops": "",
}
"""The folders of rooms that are divided, and which of the same room each may import; a room's own name stands for the
modules that lie in no folder. Single modules are exceptions."""

LEAVES = {room for room, imported in MAY_IMPORT.items() if not imported} - {"__init__", "storage"}

PURE = {"autoscale", "checkpoint", "execution", "graph"}
PURE_IMPORTS = {
    *("abc", "ast", "re"),
    "bisect",
    "collections",
    "cronsim",
    "dataclasses",
    "datetime",
    "enum",
    "functools",
    "hashlib",
    "itertools",
    "math",
    "typing",
    "zoneinfo",
}
PURE_IMPORTS |= {"holdfast", "msgspec", "pyarrow"}
PURE_LEAVES = LEAVES - {"clock", "equality", "failpoints", "kernels", "metrics"}
"""Modules that the pure rooms may import: nothing that reads a clock, a file or a socket, or starts a thread."""

BAD_OPENINGS = re.compile(
    r"\W*(it|its|that|this|those|these|what|which|who|whose|whether|where|of|in|on|at|by|for|with|without|as|from|to|and|"
    r"but|or|nor|they|them|so|also|after|between|over|under|above|below|beyond|behind|through|during|since|while|up)"
    r"\b(?!')",
    re.IGNORECASE,
)
"""Words with which no docstring opens: its first sentence begins with a verb, or with a noun that names its subject."""
FILE_LINES_MAX = 500
LONGER: dict[str, int] = {"src/holdfast/execution/machine.py": 700}
"""State machines, which keep a whole story in one place, and their bounds."""
FUNCTION_LINES_MAX = 60
FILE_BYTES_MAX = 1_000_000

FORBIDDEN_TEXT = {
    "a machine's own path": r"(?<![\w.~-])/(root|home|Users|work|opt/(pypi|wheels))/\w",
    "a registry's address": r"https?://[\w.-]*(pypi|pythonhosted|maven|npmjs|debian)\.|--(extra-)?index-url|--find-links",
}


UNPICKLERS = {
    "taskmanager/hosting.py": "the program, sent by the JobMaster, whose secret the Flight server has checked",
    "spark/tasks.py": "the program and its steps, sent by Spark with the task",
    "spark/probe.py": "the program, sent by Spark with the probe",
    "spark/epoch_forwarding.py": "a step that stores rows, sent by Spark with the task",
    "spark/cluster_driver.py": "the job, sent by Spark Connect with a function, and calls in the session that hosts it",
    "kernels/cache.py": "compiled kernels: of this user's or root's files, or of the JobMaster by the job's secret",
    "sources/pyspark_reader.py": "a partition, planned by the JobMaster and sent with the task",
    "functions/windows/process.py": "the same, of a function behind a window",
    "functions/process/declared.py": "a round trip in one process: each subtask's own copy of a function",
}
"""The only modules that unpickle, and whose bytes: the running driver's, or those of files trusted as the package."""


@cache
def committed() -> list[Path]:
    """Files under version control, and new ones that are not ignored; all files where there is no git."""
    command = ["git", "-C", str(ROOT), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    try:
        listed = subprocess.run(command, capture_output=True, check=True).stdout.decode().split("\0")
        found = [ROOT / name for name in listed if name]
    except (OSError, subprocess.CalledProcessError):
        found = [
            path for path in ROOT.rglob("*") if not {part[0] for part in path.relative_to(ROOT).parts} & {".", "_"}
        ]
    return [path for path in found if path.is_file()]


def python_files(*folders: str) -> list[Path]:
    return [path for path in committed() if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in folders]


def where(path: Path, line: int | None = None) -> str:
    return f"{path.relative_to(ROOT)}" if line is None else f"{path.relative_to(ROOT)}:{line}"


def room_of(path: Path) -> str:
    parts = path.relative_to(PACKAGE).parts
    return parts[0] if len(parts) > 1 else path.stem


def runtime_imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and dotted name of everything a file imports when it runs, inside functions too."""
    pending: list[ast.AST] = [ast.parse(path.read_text())]
    while pending:
        node = pending.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, name.name) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from ((node.lineno, f"{node.module}.{name.name}") for name in node.names)
        pending += ast.iter_child_nodes(node)


def room_imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """Line, room and dotted name within Holdfast of a file's imports from other rooms."""
    for line, name in runtime_imports(path):
        if name.split(".")[0] == "holdfast":
            inside = name.removeprefix("holdfast").removeprefix(".") or "__init__"
            room = inside.split(".")[0]
            if room != room_of(path):
                yield line, room, inside


SOURCES = [path for path in python_files("src") if path.is_relative_to(PACKAGE)]


def test_rooms_import_only_what_the_table_allows():
    wrong = []
    for path in SOURCES:
        allowed = MAY_IMPORT[room_of(path)].split()
        for line, room, name in room_imports(path):
            by_name = any(name == entry or name.startswith(f"{entry}.") for entry in allowed)
            if not by_name and room not in LEAVES:
                wrong.append(f"{where(path, line)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_the_table_names_every_room():
    assert {room_of(path) for path in SOURCES} == set(MAY_IMPORT)


@pytest.mark.parametrize("table", [MAY_IMPORT, SUBROOMS], ids=["rooms", "folders of rooms"])
def test_no_room_imports_itself_by_way_of_others(table):
    done: set[str] = {"__init__"}  # the API is asked for its version
    while left := {name for name in table if name not in done}:
        # A single module of another room, like "checkpoint.triggers", is no entry: it is not followed.
        free = {name for name in left if {used for used in table[name].split() if used in table} <= done}
        assert free, f"these rooms import each other: {', '.join(sorted(left))}"
        done |= free


def subroom_of(name: str) -> str:
    """The innermost folder of a divided room that a module is in, by its dotted name within Holdfast."""
    parts = name.split(".")
    folders = (".".join(parts[:length]) for length in range(len(parts), 0, -1))
    return next((folder for folder in folders if folder in SUBROOMS), parts[0])


def test_folders_of_divided_rooms_import_only_what_the_table_allows():
    wrong = []
    for path in SOURCES:
        module = ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        own = subroom_of(module)
        if own not in SUBROOMS:
            continue
        for line, name in runtime_imports(path):
            inside = name.removeprefix("holdfast.")
            other = subroom_of(inside)
            if (
                name != inside
                and inside.split(".")[0] == own.split(".")[0]
                and other not in (own, *SUBROOMS[own].split())
                and not any(inside.startswith(f"{each}.") for each in SUBROOMS[own].split() if each not in SUBROOMS)
            ):
                wrong.append(f"{where(path, line)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_every_folder_of_a_divided_room_is_in_the_table():
    divided = {name.split(".")[0] for name in SUBROOMS}
    folders = {path.parent.relative_to(PACKAGE).parts for path in SOURCES}
    found = {".".join(parts) for parts in folders if parts[:1] and parts[0] in divided}
    assert found == set(SUBROOMS)


def test_every_room_has_a_folder_of_tests():
    rooms = {room for room in MAY_IMPORT if (PACKAGE / room).is_dir()}
    tested = {path.parent.name for path in python_files("tests") if path.name.startswith(f"test_{path.parent.name}_")}
    assert rooms - tested == set()


def test_pyspark_is_imported_in_the_spark_room_only():
    wrong = [
        f"{where(path, line)} imports {name}"
        for path in SOURCES
        if room_of(path) != "spark"
        for line, name in runtime_imports(path)
        if name.split(".")[0] in ("pyspark", "py4j")
    ]
    assert not wrong, "\n".join(wrong)


def test_every_log_record_is_made_printable_and_loses_its_secrets():
    wrong = [where(path) for path in SOURCES if "getLogger" in path.read_text() and path.name != "printable.py"]
    assert not wrong, f"{', '.join(wrong)}: take the logger from holdfast.printable.logger"


def test_only_what_the_running_driver_sends_is_unpickled():
    found = set()
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            imported = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            imported += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            assert not {"pickle", "marshal", "shelve", "dill"} & set(imported), where(path)
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in ("loads", "Unpickler"):
                owner = called.value.id if isinstance(called.value, ast.Name) else ""
                if owner not in ("json", "tomllib"):
                    found.add(path.relative_to(PACKAGE).as_posix())
    assert found == set(UNPICKLERS)


@pytest.mark.parametrize("room", sorted(PURE))
def test_the_rules_import_no_io_clock_or_threads(room):
    wrong = []
    for path in SOURCES:
        if room_of(path) != room:
            continue
        outside = {name.split(".")[0]: line for line, name in runtime_imports(path)}
        wrong += [f"{where(path, line)} imports {name}" for name, line in outside.items() if name not in PURE_IMPORTS]
        wrong += [
            f"{where(path, line)} imports {name}"
            for line, other, name in room_imports(path)
            if other in LEAVES - PURE_LEAVES
        ]
    assert not wrong, "\n".join(wrong)


def test_no_file_is_longer_than_a_reader_can_hold():
    wrong = [
        f"{where(path)} has {lines} lines, at most {most} are allowed: split it"
        for path in python_files("src", "tests", "benchmarks", "examples")
        if (lines := len(path.read_text().splitlines())) > (most := LONGER.get(where(path), FILE_LINES_MAX))
    ]
    assert not wrong, "\n".join(wrong)


def test_no_function_is_longer_than_a_screen():
    wrong = []
    for path in python_files("src", "tests", "benchmarks", "examples"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
                and (lines := code_lines(node)) > FUNCTION_LINES_MAX
            ):
                wrong.append(f"{where(path, node.lineno)} {node.name} has {lines} lines, at most {FUNCTION_LINES_MAX}")
    assert not wrong, "\n".join(wrong)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Count the lines of the body without its docstring: parameters are settings, which read well as a long list."""
    first, last = function.body[0], function.body[-1]
    documented = (
        isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str)
    )
    docstring = (first.end_lineno or 0) - first.lineno + 1 if documented else 0
    return (last.end_lineno or 0) - first.lineno + 1 - docstring


def docstrings(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of every docstring in a file, those of attributes and constants too."""
    for node in ast.walk(ast.parse(path.read_text())):
        body = getattr(node, "body", None)
        for statement in body if isinstance(body, list) else []:
            value = statement.value if isinstance(statement, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                yield statement.lineno, value.value


def opens_badly(text: str) -> bool:
    return BAD_OPENINGS.match(text) is not None


def test_docstrings_open_with_a_verb_or_the_name_of_their_subject():
    wrong = [
        f"{where(path, line)} begins with {text.split()[0]!r}: name the subject, or begin with a verb"
        for path in python_files("src", "tests", "benchmarks", "examples")
        for line, text in docstrings(path)
        if opens_badly(text)
    ]
    assert not wrong, "\n".join(wrong)


OF_EACH_MACHINE = {"Command", "Event"}
"""Type names that each of the pure machines has for itself."""


def public_types(path: Path) -> Iterator[tuple[int, str]]:
    """Line and name of each public class of a module, and of each public name for a type (a single letter is none)."""
    for node in ast.parse(path.read_text()).body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        names = [node.name] if isinstance(node, ast.ClassDef) else [t.id for t in targets if isinstance(t, ast.Name)]
        yield from ((node.lineno, name) for name in names if re.match(r"[A-Z]\w*[a-z]", name))


def test_the_public_name_of_a_class_or_type_means_one_thing():
    places: dict[str, list[str]] = {}
    for path in SOURCES:
        for line, name in public_types(path):
            places.setdefault(name, []).append(where(path, line))
    doubles = [
        f"{name}: {', '.join(at)}" for name, at in sorted(places.items()) if len(at) > 1 and name not in OF_EACH_MACHINE
    ]
    assert not doubles, "name each class and type for what it alone is:\n" + "\n".join(doubles)


HELPER_FOLDERS = {"simulation", "kills"}
HELPER = re.compile(r"_(kit|world|world_parts|world_end|model|text|script)$")
NAMED_FOR_ONE_THING = {
    "debezium_engine",
    "docs_pages",
    "execution_units_history",
    "journal_exploration",
    "kernel_list",
    "pinned_seeds",
    "quick_jvm",
    "sampling",
    "small_disk",
    "sources_postgres_driver",
    "sources_postgres_server",
    "waiting",
}
"""Helpers of tests/README.md's last role."""


def test_helpers_of_tests_bear_the_name_of_their_role():
    wrong = []
    for path in python_files("tests"):
        is_helper = not path.name.startswith("test_") and path.stem != "conftest"
        if is_helper and path.parent.name not in HELPER_FOLDERS and path.stem not in NAMED_FOR_ONE_THING:
            wrong += [] if HELPER.search(path.stem) else [where(path)]
        is_world = "_world" in path.stem or "_model" in path.stem
        has_world = re.search(r"^class World\b", path.read_text(), re.MULTILINE)
        wrong += [f"{where(path)}: World"] if has_world and not is_world else []
    assert not wrong, f"tests/README.md says how helpers are named: {wrong}"


def test_tests_wait_for_conditions_and_never_just_sleep():
    wrong = []
    for path in python_files("tests"):
        tree = ast.parse(path.read_text())
        loops = [node for node in ast.walk(tree) if isinstance(node, ast.While)]
        polling = {id(node) for loop in loops for node in ast.walk(loop)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("time.sleep", "sleep"):
                fixed = isinstance(node.args[0], ast.Constant)
                if fixed and id(node) not in polling:
                    wrong.append(where(path, node.lineno))
    assert not wrong, f"sleeps outside of a loop that waits for a condition: {wrong}"


def test_waiting_until_is_the_only_loop_that_waits_up_to_a_deadline():
    wrong = []
    for path in python_files("tests"):
        loops = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.While)]
        for loop in loops if path.stem != "waiting" else []:
            checks = [ast.unparse(node.test) for node in ast.walk(loop) if isinstance(node, ast.Assert)]
            wrong += [where(path, loop.lineno)] if any("monotonic()" in check for check in checks) else []
    assert not wrong, f"use waiting.until: {wrong}"


@pytest.mark.parametrize("what", sorted(FORBIDDEN_TEXT))
def test_no_committed_file_depends_on_one_machine_or_network(what):
    pattern = re.compile(FORBIDDEN_TEXT[what])
    wrong = []
    for path in committed():
        if path == Path(__file__).resolve():
            continue
        text = path.read_bytes().decode(errors="ignore")
        wrong += [
            f"{where(path, number)} holds {what}: {line.strip()[:120]}"
            for number, line in enumerate(text.splitlines(), 1)
            if pattern.search(line)
        ]
    assert not wrong, "\n".join(wrong)


def test_no_generated_data_is_committed():
    wrong = [
        f"{where(path)} has {size:,} bytes, at most {FILE_BYTES_MAX:,} are allowed: make it when it is needed"
        for path in committed()
        if (size := path.stat().st_size) > FILE_BYTES_MAX
    ]
    assert not wrong, "\n".join(wrong)
