"""What the proxy counts, for Prometheus; every label has a bounded set of values, and no text of a client is one."""

from __future__ import annotations

from typing import Any

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

ROUTES = ("/v1/chat/completions", "/v1/models", "/healthz", "/metrics")
REASONS = frozenset({
    "bad_content_type", "bad_header", "bad_host", "bad_json", "cross_origin", "host_or_key", "invalid_api_key",
    "invalid_request", "slow_request", "too_large", "too_many_connections", "too_many_requests",
    "unsupported_with_guard",
})  # fmt: skip
ERRORS = frozenset({"defence_failed", "detector_failed", "internal_error", "timeout", "upstream_error",
                    "upstream_timeout"})  # fmt: skip
_BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)


class Metrics:
    """The counters of one application, in a registry of their own."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        named: dict[str, Any] = {"registry": self._registry, "namespace": "steelyard_guard"}
        self._requests = Counter("requests", "Requests answered", ("route", "status"), **named)
        self._seconds = Histogram("request_seconds", "Seconds per request", ("route",), buckets=_BUCKETS, **named)
        self._refusals = Counter("refusals", "Requests refused", ("reason",), **named)
        self._errors = Counter("errors", "Requests that failed here or upstream", ("kind",), **named)
        self._copies = Counter("upstream_calls", "Upstream calls, the copies of a defence among them", **named)
        self._verdicts = Counter("verdicts", "Verdicts of the defence", ("verdict",), **named)
        self._upstream = Counter("upstream_errors", "Upstream calls that failed", ("kind",), **named)

    def answer(self, path: str, status: int, seconds: float) -> None:
        """Count one request; status 0 stands for a client that left."""
        route = path if path in ROUTES else "other"
        self._requests.labels(route, str(status) if 100 <= status < 600 else "none").inc()
        self._seconds.labels(route).observe(seconds)

    def refuse(self, code: str) -> None:
        """Count one request that was refused or failed, by its error's code."""
        if code in ERRORS:
            self._errors.labels(code).inc()
        else:
            self._refusals.labels(code if code in REASONS else "other").inc()

    def call(self, count: int = 1) -> None:
        """Count upstream calls."""
        self._copies.inc(count)

    def upstream_error(self, code: str) -> None:
        """Count one upstream call that failed."""
        self._upstream.labels(code if code in ERRORS else "refused").inc()

    def verdict(self, record: object) -> None:
        """Count the verdict in a vote record."""
        complied = record.get("complied") if isinstance(record, dict) else None
        verdict = ("complied" if complied else "refused") if isinstance(complied, bool) else "unknown"
        self._verdicts.labels(verdict).inc()

    def page(self) -> bytes:
        """Return all counters as Prometheus reads them."""
        return generate_latest(self._registry)
