"""The job's metrics for Prometheus, in base units, with the job's name as a label.

Nothing is measured here: a request shows the `JobView` of that moment. The endpoint needs no secret, as is usual for
Prometheus. It therefore binds only the given address, and shows only names and numbers.
"""

from collections.abc import Callable, Iterator
from typing import Any

from prometheus_client import CollectorRegistry, make_wsgi_app
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from holdfast.formats.store_use import rates
from holdfast.metrics import EXPONENT_MAX, EXPONENT_MIN
from holdfast.observe.known_metrics import KNOWN, KnownMetric
from holdfast.observe.metrics import Distribution, Picture
from holdfast.observe.view import JobView
from holdfast.printable import printable
from holdfast.ui.pages import Application


class JobCollector(Collector):
    """Translates a job's view into metric families of Prometheus; before the job has started there are none."""

    def __init__(self, view: Callable[[], JobView | None]) -> None:
        self._view = view

    def collect(self) -> Iterator[Any]:
        """Yield families in the order of the table of known names; families without a value are left out."""
        view = self._view()
        if view is None:
            return
        job, picture = view.name, view.metrics
        for metric in KNOWN.values():
            if metric.kind == "histogram":
                if metric.name in picture.distributions:
                    yield _histogram(job, metric, picture.distributions[metric.name])
            elif metric.name in picture.by_subtask or metric.name in picture.values:
                yield _numbers(job, metric, picture)
        lag = GaugeMetricFamily("holdfast_source_lag", "Input not yet processed", labels=["job", "source", "split"])
        for source, splits in view.lag.items():
            for split, value in splits.items():
                lag.add_metric(_labels(job, source, split), value)
        yield lag
        times = GaugeMetricFamily("holdfast_watermark_timestamp_seconds", "Watermarks", labels=["job", "kind", "name"])
        by_kind = {"source": view.source_watermarks, "operator": view.operator_watermarks}
        for kind, watermarks in by_kind.items():
            for name, time_us in watermarks.items():
                times.add_metric(_labels(job, kind, name), time_us / 1e6)
        yield times
        cost = GaugeMetricFamily("holdfast_store_cost_per_hour", "By Job(prices=…)", labels=["job", "lane"])
        for lane in rates(view.store_use, view.prices):
            cost.add_metric(_labels(job, lane.lane), lane.cost_per_hour)
        yield cost


def _labels(*values: str) -> list[str]:
    """Return printable values of labels: splits are named after files and topics, and may have any character."""
    return [printable(each) for each in values]


def _numbers(job: str, metric: KnownMetric, picture: Picture) -> Any:
    subtasks = picture.by_subtask.get(metric.name)
    labels = ["job", "operator", "subtask"] if subtasks else ["job"]
    family = CounterMetricFamily if metric.kind == "counter" else GaugeMetricFamily
    made = family(metric.prometheus.removesuffix("_total"), metric.help, labels=labels)
    if subtasks:
        for place, value in sorted(subtasks.items()):
            made.add_metric(_labels(job, place.operator, str(place.subtask)), value * metric.scale)
    else:
        made.add_metric(_labels(job), picture.values[metric.name] * metric.scale)
    return made


def _histogram(job: str, metric: KnownMetric, found: Distribution) -> Any:
    made = HistogramMetricFamily(metric.prometheus, metric.help, labels=["job"])
    counted, buckets = 0.0, []
    for exponent in range(EXPONENT_MIN, EXPONENT_MAX + 1):  # all buckets: Prometheus compares them over time
        counted += found.buckets.get(exponent, 0.0)
        buckets.append((str(2.0**exponent * metric.scale), counted))
    made.add_metric(_labels(job), [*buckets, ("+Inf", found.count)], found.sum * metric.scale)
    return made


def metrics_application(view: Callable[[], JobView | None]) -> Application:
    """Make the WSGI application that answers Prometheus."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(JobCollector(view))
    return make_wsgi_app(registry)
