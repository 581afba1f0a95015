"""The probe of a start. It runs beside the start's other checks, and only if executors or modules are new.

A session remembers the executors that were probed, and the facts that the probe found for each: that its Python has the
names to which programs refer, and that it can read the storage. A start probes if a fact is missing for an executor.

Invariant: if a probe fails, or if executors come or go during the probe, no facts are noted.
"""

import hashlib
import pickletools
import sys
import threading
import uuid
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from functools import partial

import cloudpickle

from holdfast.errors import JobRefused, ObjectNotFound
from holdfast.ids import Epoch
from holdfast.spark.host import SparkHost
from holdfast.spark.probe import probe_executors
from holdfast.spark.session import new_thread
from holdfast.storage import names
from holdfast.storage.store import ObjectStore

PROBES_MAX = 3
APPLICATIONS_MAX = 16
"""Bound on the number of Spark applications that are remembered. The oldest applications are forgotten first."""
FACTS_MAX = 10_000
"""Bound on the facts that are remembered for an executor; beyond it the executor is probed again."""
PROGRAM_BYTES_MAX = 1 << 20
"""Bound in bytes on a program that is searched for names. For a larger program, each start probes the executors."""
STRINGS = frozenset({"SHORT_BINUNICODE", "BINUNICODE", "BINUNICODE8"})
RECALLED = frozenset({"BINGET", "LONG_BINGET"})


class Probed:
    """The facts that probes of a Spark application's executors have found. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._facts: dict[str, frozenset[str]] = {}

    def knows(self, executors: Collection[str], facts: frozenset[str]) -> bool:
        with self._lock:
            return all(facts <= self._facts.get(executor, frozenset()) for executor in executors)

    def note(self, executors: Collection[str], facts: frozenset[str]) -> None:
        """Note the facts of the executors that exist now. Other executors are forgotten, because they have ended."""
        with self._lock:
            known = {executor: self._facts.get(executor, frozenset()) | facts for executor in executors}
            self._facts = {executor: each for executor, each in known.items() if len(each) <= FACTS_MAX}


_APPLICATIONS: dict[str, Probed] = {}
_LOCK = threading.Lock()


def probed_in(application: str) -> Probed:
    """Return the probed executors of a Spark application, by its id."""
    with _LOCK:
        while application not in _APPLICATIONS and len(_APPLICATIONS) >= APPLICATIONS_MAX:
            del _APPLICATIONS[next(iter(_APPLICATIONS))]
        return _APPLICATIONS.setdefault(application, Probed())


def facts_of(program: bytes) -> frozenset[str] | None:
    """Return the modules, and the names in modules, to which a pickled program refers; None if it is too large to
    search.

    Any text that is a module's name counts as a reference. Modules that travel with the program are left out.
    """
    if len(program) > PROGRAM_BYTES_MAX:
        return None
    texts: list[str | None] = []
    stored: list[str | None] = []
    facts: set[str] = set()
    for operation, argument, _ in pickletools.genops(program):
        if operation.name in STRINGS:
            texts.append(argument)
        elif operation.name in RECALLED:
            texts.append(stored[int(argument or 0)])
        elif operation.name == "MEMOIZE":
            stored.append(texts[-1])
        elif operation.name == "STACK_GLOBAL":
            facts.add(f"{texts[-2]}:{texts[-1]}")
            texts.append(None)
        elif operation.name != "FRAME":
            texts.append(None)
    facts.update(text for text in texts if text in sys.modules and text is not None)
    travel = {"__main__", *cloudpickle.list_registry_pickle_by_value()}
    return frozenset(fact for fact in facts if not _is_inside(fact.partition(":")[0], travel))


def _is_inside(module: str, parents: Collection[str]) -> bool:
    return any(module == parent or module.startswith(f"{parent}.") for parent in parents)


def storage_fact(url: str, options: Mapping[str, str], is_local: bool) -> str:
    """Return the fact that an executor reads a storage at this URL, with these options.

    Access to a storage says nothing about another storage: each may be a mount or a bucket of its own. Executors of
    `local[…]` are on the driver's machine, so they can read the driver's files, but not its memory.
    """
    if is_local and url.startswith("file:"):
        return "storage in files of this machine"
    return f"storage {hashlib.sha256(repr((url, sorted(options.items()))).encode()).hexdigest()}"


class Beside:
    """A check that runs beside the start, in its own thread; None: no check is needed. `result` waits for it."""

    def __init__(self, check: Callable[[], None] | None) -> None:
        self._ended: Future[None] = Future()
        if check is None:
            self._ended.set_result(None)
        else:
            new_thread(partial(self._run, check), "holdfast-check").start()

    def _run(self, check: Callable[[], None]) -> None:
        try:
            check()
            self._ended.set_result(None)
        except BaseException as error:
            self._ended.set_exception(error)

    @property
    def running(self) -> bool:
        return not self._ended.done()

    def result(self) -> None:
        """Wait for the check, and raise its error if it failed."""
        self._ended.result()


def begin_probe(
    host: SparkHost,
    program: bytes,
    facts: frozenset[str] | None,
    store: ObjectStore,
    storage: tuple[str, dict[str, str]],
    tasks: Callable[[], int],
    others: Sequence[tuple[ObjectStore, tuple[str, dict[str, str]]]] = (),
) -> Beside:
    """Probe the executors, unless all facts about them are known. `others`: the other storages of the job."""
    is_local = host.master.partition("[")[0] == "local"
    probed, executors = probed_in(host.application), host.executors()
    storages = [(store, storage), *others]
    reads = {storage_fact(*each, is_local) for _, each in storages}
    known = None if facts is None or executors is None else facts | reads
    if executors is not None and known is not None and probed.knows(executors, known):
        return Beside(None)

    def probe() -> None:
        for opened, each in storages:
            _probe(host, program, each, opened, 1 if is_local else tasks())
        if executors is not None and known is not None:
            probed.note(executors, known)

    return Beside(probe)


def _probe(
    host: SparkHost, program: bytes, storage: tuple[str, dict[str, str]], store: ObjectStore, tasks: int
) -> None:
    """Probe the executors; try again if another driver's clean-up has deleted the probe's object."""
    for attempt in range(1, PROBES_MAX + 1):
        name, nonce = names.probe(Epoch(0)), uuid.uuid4().bytes
        store.put(name, nonce)
        try:
            probe_executors(host, program, storage, (name, nonce), tasks)
            return
        except JobRefused:
            if attempt == PROBES_MAX or is_there(store, name):
                raise
        finally:
            store.delete([name])


def is_there(store: ObjectStore, name: str) -> bool:
    try:
        store.get(name)
    except ObjectNotFound:
        return False
    return True
