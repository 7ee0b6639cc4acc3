"""The engine's statistics as metrics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from loadmaster.serving.http.monitor import Monitor
from loadmaster.serving.types import AdapterInfo, EngineStats


class EngineCollector(Collector):
    """Turns the engine's statistics into metrics when they are asked for."""

    def __init__(self, monitor: Monitor) -> None:
        self._monitor = monitor

    def describe(self) -> list[Metric]:
        """Return nothing: registering must not ask the engine."""
        return []

    def collect(self) -> Iterator[Metric]:
        """Yield the metrics of this moment."""
        stats = self._monitor.read()
        yield from _counters(stats)
        yield from _gauges(stats)
        yield from _adapters(stats, self._monitor.adapters())
        yield from self._monitor.first_token.collect()


def _counters(stats: EngineStats) -> Iterator[Metric]:
    requests = CounterMetricFamily("loadmaster_requests", "Requests that have ended.", labels=["outcome"])
    requests.add_metric(["done"], stats.requests_done)
    requests.add_metric(["failed"], stats.requests_failed)
    requests.add_metric(["cancelled"], stats.requests_cancelled)
    yield requests
    yield CounterMetricFamily("loadmaster_prompt_tokens", "Tokens of prompts.", value=stats.prompt_tokens)
    yield CounterMetricFamily("loadmaster_generated_tokens", "Tokens generated.", value=stats.generated_tokens)
    yield CounterMetricFamily("loadmaster_cached_tokens", "Prompt tokens out of the prefix cache.", value=stats.cached_tokens)
    yield CounterMetricFamily("loadmaster_preemptions", "Requests put back to free blocks.", value=stats.preemptions)


def _gauges(stats: EngineStats) -> Iterator[Metric]:
    yield GaugeMetricFamily("loadmaster_up", "1 while the engine lives.", value=float(stats.alive))
    yield GaugeMetricFamily("loadmaster_last_step_age_seconds", "Time since the last sign of life.", value=stats.last_step_age)
    yield GaugeMetricFamily("loadmaster_requests_running", "Requests in the batch.", value=stats.running)
    yield GaugeMetricFamily("loadmaster_requests_waiting", "Requests in the queue.", value=stats.waiting)
    yield GaugeMetricFamily("loadmaster_kv_blocks_used", "Blocks of the key-value cache in use.", value=stats.kv_blocks_used)
    yield GaugeMetricFamily("loadmaster_kv_blocks_total", "Blocks of the key-value cache.", value=stats.kv_blocks_total)
    use = _share(stats.kv_blocks_used, stats.kv_blocks_total)
    yield GaugeMetricFamily("loadmaster_kv_use_ratio", "Share of the key-value cache in use.", value=use)
    hits = _share(stats.cached_tokens, stats.prompt_tokens)
    yield GaugeMetricFamily("loadmaster_prefix_hit_ratio", "Share of prompt tokens out of the prefix cache.", value=hits)


def _adapters(stats: EngineStats, loaded: Sequence[AdapterInfo]) -> Iterator[Metric]:
    """Yield what is told of every adapter; the empty name is the model without one."""
    requests = CounterMetricFamily("loadmaster_adapter_requests", "Requests by adapter.", labels=["adapter"])
    prompt = CounterMetricFamily("loadmaster_adapter_prompt_tokens", "Tokens of prompts by adapter.", labels=["adapter"])
    cached = CounterMetricFamily(
        "loadmaster_adapter_cached_tokens", "Prompt tokens out of the prefix cache by adapter.", labels=["adapter"]
    )
    hits = GaugeMetricFamily(
        "loadmaster_adapter_prefix_hit_ratio",
        "Share of an adapter's prompt tokens out of the prefix cache.",
        labels=["adapter"],
    )
    for adapter in stats.adapters:
        requests.add_metric([adapter.name], adapter.requests)
        prompt.add_metric([adapter.name], adapter.prompt_tokens)
        cached.add_metric([adapter.name], adapter.cached_tokens)
        hits.add_metric([adapter.name], _share(adapter.cached_tokens, adapter.prompt_tokens))
    yield from (requests, prompt, cached, hits)
    yield GaugeMetricFamily("loadmaster_adapters_loaded", "Adapters that requests can name.", value=len(loaded))
    nbytes = GaugeMetricFamily("loadmaster_adapter_bytes", "Bytes of a loaded adapter, over all ranks.", labels=["adapter"])
    for info in loaded:
        nbytes.add_metric([info.name], info.nbytes)
    yield nbytes


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0
