"""The job's metrics for Prometheus: an HTTP endpoint at the driver, in base units, with the job's name as a label.

Nothing is measured here: a request takes the picture that `progress` gives at that moment. The endpoint needs no
secret, as is usual, so it binds only the given address, and shows only names and numbers.
"""

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from holdfast.errors import JobRefused
from holdfast.jobmaster.known_metrics import KNOWN, KnownMetric
from holdfast.jobmaster.metrics import Distribution, Picture
from holdfast.metrics import EXPONENT_MAX, EXPONENT_MIN

if TYPE_CHECKING:
    from holdfast.jobmaster.master import JobMaster


class JobCollector(Collector):
    """Translates a JobMaster's progress into Prometheus's families; without a JobMaster there are none."""

    def __init__(self, job: str, master: Callable[[], "JobMaster | None"]) -> None:
        self._job = job
        self._master = master

    def collect(self) -> Iterator[Any]:
        """Families in the order of the table of known names; those without a value are left out."""
        master = self._master()
        if master is None:
            return
        picture = master.progress.picture()
        for metric in KNOWN.values():
            if metric.kind == "histogram":
                if metric.name in picture.distributions:
                    yield self._histogram(metric, picture.distributions[metric.name])
            elif metric.name in picture.by_subtask or metric.name in picture.values:
                yield self._numbers(metric, picture)
        lag = GaugeMetricFamily("holdfast_source_lag", "There and not yet processed", labels=["job", "source", "split"])
        for source, splits in master.progress.lag().items():
            for split, value in splits.items():
                lag.add_metric([self._job, source, split], value)
        yield lag
        times = GaugeMetricFamily("holdfast_watermark_timestamp_seconds", "Watermarks", labels=["job", "kind", "name"])
        for kind, watermarks in master.progress.watermarks().items():
            for name, time_us in watermarks.items():
                times.add_metric([self._job, kind, name], time_us / 1e6)
        yield times

    def _numbers(self, metric: KnownMetric, picture: Picture) -> Any:
        subtasks = picture.by_subtask.get(metric.name)
        labels = ["job", "operator", "subtask"] if subtasks else ["job"]
        family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
        made = family(metric.prometheus.removesuffix("_total"), metric.help, labels=labels)
        if subtasks:
            for place, value in sorted(subtasks.items()):
                made.add_metric([self._job, place.operator, str(place.subtask)], value * metric.scale)
        else:
            made.add_metric([self._job], picture.values[metric.name] * metric.scale)
        return made

    def _histogram(self, metric: KnownMetric, found: Distribution) -> Any:
        made = HistogramMetricFamily(metric.prometheus, metric.help, labels=["job"])
        counted, buckets = 0.0, []
        for exponent in range(EXPONENT_MIN, EXPONENT_MAX + 1):  # all of them: Prometheus compares them over time
            counted += found.buckets.get(exponent, 0.0)
            buckets.append((str(2.0**exponent * metric.scale), counted))
        made.add_metric([self._job], [*buckets, ("+Inf", found.count)], found.sum * metric.scale)
        return made


class MetricsServer:
    """Serves `http://host:port/metrics` from construction until `close`.

    Raises
    ------
    JobRefused
        The port is taken, or the address does not belong to this machine.
    """

    def __init__(self, collector: Collector, host: str, port: int) -> None:
        registry = CollectorRegistry(auto_describe=False)
        registry.register(collector)
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise JobRefused(
                f"metrics_port={port}: nothing can listen there on {host}: {error}; give another port, or 0 for any"
            ) from error
        self.url = f"http://{host}:{self._server.server_port}/metrics"

    def close(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
