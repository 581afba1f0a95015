"""The object store of a simulation: slow, and wrong in every way in which a real store can be.

    request ──first delay──► done in the store ──second delay──► answered            nobody can take it back any more:
         └── fails │ done, and reported as failed │ reported as failed, and done much later, whoever has died since

`watch` is told of every object that appears, and before an object goes.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from simulation_runtime import Runtime
from simulation_settings import SLOWER, Outage, Settings

from holdfast.errors import ObjectExists, ObjectNotFound, StorageError
from holdfast.journal.other_storages import routed
from holdfast.storage import names
from holdfast.storage.store import ObjectInfo, ObjectStore
from holdfast.testing import Fault

URL = "simulated://store"


class Watch(Protocol):
    def created(self, name: str, data: bytes) -> None: ...

    def deleting(self, name: str) -> None: ...


@dataclass
class Weather:
    """How the store behaves now."""

    faults: float = 0.0
    delay_s: float = 0.0
    slow: float = 0.0
    """The share of requests that take a hundred times as long."""
    late_s: float = 5.0
    """How late a late request is, on average."""


LAGS_S = (0.0, 0.0, 0.0, 1.5)
"""Seconds by which listings lag behind, of which each seed draws one."""


class FrozenStore:
    """The objects of a moment; without delays, for the oracle."""

    url = URL

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)

    def get(self, name: str) -> bytes:
        try:
            return self.objects[name]
        except KeyError:
            raise ObjectNotFound(f"{self.url}: {name!r} does not exist") from None

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        data = FrozenStore.get(self, name)[offset : offset + length]
        if len(data) != length:
            raise StorageError(f"{self.url}: {name!r} is shorter than {offset + length} bytes")
        return data

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        names = sorted(name for name in self.objects if name.startswith(prefix) and (after is None or name > after))
        return [ObjectInfo(name, len(self.objects[name]), 0.0) for name in names]

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        self.objects[name] = bytes(data)

    def create(self, name: str, data: bytes) -> None:
        if name in self.objects:
            raise ObjectExists(f"{self.url}: {name!r} exists")
        self.put(name, data)

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self.objects.pop(name, None)


class SimulatedStore(FrozenStore):
    """`ObjectStore`, for all processes of a simulation."""

    def __init__(self, runtime: Runtime, seed: int, watch: Watch) -> None:
        super().__init__({})
        self.weather = Weather()
        self.outages: tuple[Outage, ...] = ()
        """Their times are the runtime's here."""
        self.under_way: set[int] = set()
        """Requests, by number, that are still to be done or to fail, whatever their callers were told."""
        self.count = 0
        self.late_journal: set[str] = set()
        self._runtime = runtime
        self._rng = random.Random(seed)
        self.lag_s = random.Random(f"lag {seed}").choice(LAGS_S)
        self._created_s: dict[str, float] = {}
        self._watch = watch
        self._sites: dict[str, SimulatedSite] = {}

    def frozen(self) -> FrozenStore:
        """All objects of the job, wherever they lie."""
        lying = [site.objects for site in self._sites.values()]
        elsewhere = {name: data for each in lying for name, data in each.items() if names.epoch_of(name) is not None}
        return FrozenStore(self.objects | elsewhere)

    def site(self, url: str) -> "SimulatedSite":
        """Another storage, which the same faults meet."""
        if url not in self._sites:
            self._sites[url] = SimulatedSite(self, url)
        return self._sites[url]

    def put(self, name: str, data: bytes | bytearray | memoryview) -> None:
        content = bytes(data)
        self._request("put", name, lambda: self._put(name, content))

    def create(self, name: str, data: bytes) -> None:
        self._request("create", name, lambda: self._create(name, data))

    def get(self, name: str) -> bytes:
        found: bytes = self._request("get", name, lambda: FrozenStore.get(self, name))
        return found

    def get_range(self, name: str, offset: int, length: int) -> bytes:
        found: bytes = self._request("get", name, lambda: FrozenStore.get_range(self, name, offset, length))
        return found

    def list(self, prefix: str, *, after: str | None = None) -> list[ObjectInfo]:
        found: list[ObjectInfo] = self._request("list", prefix, lambda: self._listed(prefix, after))
        return found

    def delete(self, names: Sequence[str]) -> None:
        if names:
            wanted = list(names)
            self._request("delete", " ".join(wanted), lambda: self._delete(wanted))

    def _listed(self, prefix: str, after: str | None) -> Sequence[ObjectInfo]:
        """The objects that are old enough to be shown."""
        shown_s = self._runtime.now_s - self.lag_s
        return [info for info in FrozenStore.list(self, prefix, after=after) if self._created_s[info.name] <= shown_s]

    def _put(self, name: str, data: bytes) -> None:
        self._created_s.setdefault(name, self._runtime.now_s)
        self.objects[name] = data
        self._watch.created(name, data)

    def _create(self, name: str, data: bytes) -> None:
        if name in self.objects:
            raise ObjectExists(f"{self.url}: {name!r} exists")
        self._put(name, data)

    def _delete(self, names: Sequence[str]) -> None:
        for name in names:
            if name in self.objects:
                self._watch.deleting(name)
                del self.objects[name], self._created_s[name]

    def _request(self, operation: str, name: str, do: Callable[[], Any]) -> Any:
        fault = self._fault(operation)
        if self._is_away(operation, name):
            fault = Fault.FAIL
        process = "-" if self._runtime.current is None else self._runtime.current.process.name
        self.count += 1
        number = self.count
        done: list[Any] = []
        raised: list[StorageError] = []
        self.under_way.add(number)

        def land() -> None:
            self.under_way.discard(number)
            try:
                done.append(do())
                self._runtime.note(f"store.{operation}", name, process)
            except StorageError as error:
                raised.append(error)
                self._runtime.note(f"store.{operation}", f"{name}: {type(error).__name__}", process)

        if fault is Fault.LATE:
            if operation == "create":
                self.late_journal.add(name)
            self._runtime.later(self._rng.expovariate(1.0 / self.weather.late_s), land)
        elif fault in (Fault.FAIL, Fault.FALSE_EXISTS):
            self._runtime.later(self._delay_s(), lambda: self.under_way.discard(number))
        else:
            self._runtime.later(self._delay_s(), land)
        self._runtime.sleep(self._delay_s())
        while fault not in (Fault.LATE, Fault.FAIL, Fault.FALSE_EXISTS) and not done and not raised:
            self._runtime.sleep(0.001 + self._delay_s())
        return self._answer(operation, name, fault, done, raised)

    def _answer(
        self, operation: str, name: str, fault: Fault | None, done: Sequence[Any], raised: Sequence[StorageError]
    ) -> Any:
        if fault in (Fault.FALSE_EXISTS, Fault.OWN_EXISTS):
            self._runtime.note(f"store.{operation} says exists", f"{name} ({fault.name})")
            raise ObjectExists(f"{self.url}: {operation} {name!r}: exists (injected)")
        if fault is not None:
            self._runtime.note(f"store.{operation} fails", f"{name} ({fault.name})")
            raise StorageError(f"{self.url}: {operation} {name!r}: {fault.name} (injected)")
        if raised:
            raise raised[0]
        return done[0]

    def _is_away(self, operation: str, name: str) -> bool:
        now_s = self._runtime.now_s
        return any(
            each.after_s <= now_s < each.after_s + each.for_s
            and operation in each.operations
            and name.startswith(each.folder)
            for each in self.outages
        )

    def _fault(self, operation: str) -> Fault | None:
        if self._rng.random() >= self.weather.faults:
            return None
        if operation == "create":
            return self._rng.choice(list(Fault))
        writes = [Fault.FAIL, Fault.LOST_ANSWER, Fault.LATE]
        return self._rng.choice(writes if operation in ("put", "delete") else [Fault.FAIL])

    def _delay_s(self) -> float:
        """Half of a request's time."""
        weather = self.weather
        if not weather.delay_s:
            return 0.0
        times = SLOWER if weather.slow and self._rng.random() < weather.slow else 1.0
        return self._rng.expovariate(2.0 / weather.delay_s) * times


class SimulatedSite(SimulatedStore):
    """A storage beside a job's own: its objects are apart, and its requests meet the weather of the other store."""

    def __init__(self, main: SimulatedStore, url: str) -> None:
        FrozenStore.__init__(self, {})
        self.url = url
        self.lag_s = main.lag_s
        self._runtime, self._watch, self._created_s = main._runtime, main._watch, {}
        self._main = main

    def _request(self, operation: str, name: str, do: Callable[[], Any]) -> Any:
        return self._main._request(operation, name, do)


def opened(store: SimulatedStore, settings: Settings) -> ObjectStore:
    """Open the job's storage as a process does."""
    if not settings.elsewhere:
        return store
    return routed(store, open_site=lambda site, make: store.site(site.url))
