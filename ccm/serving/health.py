"""Health over HTTP: `/healthz`, `/livez`, `/readyz`, and a path below them for each check.

The response is 200 `ok`, or 500 with all checks and the causes of failures. `?verbose` lists all
checks, and `?exclude=NAME` skips a check. The texts are the same as in k8s.io/apiserver,
server/healthz.

Deviation: the Go cloud-controller-manager has no `/livez`, no `/readyz` and no paths of single
checks, and does not report the causes [conformance serving-health-01].
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ccm.base import log, metrics, redact
from ccm.serving.http import Handler, Request, Response, text


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """Result of a health check; `detail` is the cause of a failure, or a remark."""

    ok: bool = True
    detail: str = ""


PASSED = CheckResult()


def failed(detail: str) -> CheckResult:
    """Return a failed result with its cause."""
    return CheckResult(ok=False, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthCheck:
    """A health check; `probe` is a function or coroutine function that returns the result."""

    name: str
    probe: Callable[[], CheckResult | Awaitable[CheckResult]]

    async def run(self) -> CheckResult:
        """Run the check and return its result."""
        result = self.probe()
        return result if isinstance(result, CheckResult) else await result


PING = HealthCheck(name="ping", probe=lambda: PASSED)
"""Check that always passes; an endpoint without other checks runs it."""


class Slis:
    """Metrics of the health checks, served at `/metrics/slis` from a registry of their own.

    The response is small, so that it can be scraped often. A DELETE request resets the metrics.
    Names and labels are those of k8s.io/component-base, metrics/prometheus/slis.
    """

    def __init__(self) -> None:
        self._registry = metrics.CollectorRegistry()
        self._last = metrics.Gauge(
            "kubernetes_healthcheck",
            "[STABLE] This metric records the result of a single healthcheck.",
            ["name", "type"],
            registry=self._registry,
        )
        self._all = metrics.Counter(
            "kubernetes_healthchecks",
            "[STABLE] This metric records the results of all healthcheck.",
            ["name", "status", "type"],
            registry=self._registry,
        )

    def count(self, name: str, kind: str, *, ok: bool) -> None:
        """Count a result of a check; `kind` is the name of the endpoint, such as `livez`."""
        self._last.labels(name, kind).set(ok)
        self._all.labels(name, "success" if ok else "error", kind).inc()

    async def page(self, request: Request) -> Response:
        """Serve the metrics, or reset them for a DELETE request."""
        if request.method == "DELETE":
            self._last.clear()
            self._all.clear()
            return text("metrics reset\n")
        return Response(body=metrics.exposition(self._registry), content_type=metrics.CONTENT_TYPE)


class HealthEndpoint:
    """Handlers of one health path and of the paths below it.

    Args:
        name: `healthz`, `livez` or `readyz`.
        checks: returns the current checks, which may change while the process runs.
        slis: counts the results.
    """

    def __init__(
        self, name: str, checks: Callable[[], Sequence[HealthCheck]], *, slis: Slis
    ) -> None:
        self._name = name
        self._checks = checks
        self._slis = slis
        self._failing: frozenset[str] = frozenset()
        self._log = log.logger("serving")

    @property
    def pages(self) -> dict[str, Handler]:
        """Handlers by path."""
        return {f"/{self._name}": self.all, f"/{self._name}/": self.one}

    async def all(self, request: Request) -> Response:
        """Serve the result of all checks."""
        excluded = set(request.query.getall("exclude", ()))
        lines: list[str] = []
        failing: list[str] = []
        for check in self._checks() or (PING,):
            if check.name in excluded:
                excluded.discard(check.name)
                lines.append(f"[+]{check.name} excluded: ok")
                continue
            finding = await self._run_check(check)
            detail = f": {finding.detail}" if finding.detail else ""
            if finding.ok:
                lines.append(f"[+]{check.name} ok{detail}")
            else:
                lines.append(f"[-]{check.name} failed{detail}")
                failing.append(check.name)
        if "exclude" not in request.query:
            # Not logged with `?exclude`: a caller that excludes a failing check in every second
            # request would flood the log.
            self._note(failing)
        if failing:
            return text("\n".join([*lines, f"{self._name} check failed\n"]), 500)
        if "verbose" not in request.query:
            return text("ok")
        if excluded:
            names = ", ".join(f'"{name}"' for name in sorted(excluded))
            lines.append(f"warn: some health checks cannot be excluded: no matches for {names}")
        return text("\n".join([*lines, f"{self._name} check passed\n"]))

    async def one(self, request: Request) -> Response:
        """Serve the result of the check that the path names."""
        wanted = request.path.removeprefix(f"/{self._name}/")
        for check in self._checks() or (PING,):
            if check.name == wanted:
                finding = await self._run_check(check)
                if finding.ok:
                    return text("ok")
                return text(f"internal server error: {finding.detail}\n", 500)
        return text("404 page not found\n", 404)

    async def _run_check(self, check: HealthCheck) -> CheckResult:
        finding = await check.run()
        self._slis.count(check.name, self._name, ok=finding.ok)
        # The path is public, and error messages of a cloud may be long or contain secrets.
        return CheckResult(
            ok=finding.ok, detail=redact.mask_for_api(" ".join(finding.detail.split()))
        )

    def _note(self, failing: Sequence[str]) -> None:
        now = frozenset(failing)
        if now != self._failing:
            if now:
                self._log.warning("health check failed", path=self._name, checks=sorted(now))
            else:
                self._log.info("health checks recovered", path=self._name)
        self._failing = now
