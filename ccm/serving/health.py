"""Health over HTTP: `/healthz`, `/livez`, `/readyz`, and each check below them.

A check looks and says whether all is well, with a word on it. The answer is 200 `ok`, or 500
with every check and the cause of those that fail. `?verbose` shows all checks, `?exclude=name`
leaves one out. Texts are those of k8s.io/apiserver, server/healthz.

Deviation: the reference serves neither `/livez` and `/readyz` nor single checks, and
withholds the causes [conformance serving-health-01].
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from ccm.base import log, metrics, redact
from ccm.serving.http import Handler, Request, Response, text


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a check found; `detail` says why it fails, or what is worth knowing."""

    ok: bool = True
    detail: str = ""


WELL = Finding()


def wrong(detail: str) -> Finding:
    """A check fails, and this is the cause."""
    return Finding(ok=False, detail=detail)


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One thing that may be wrong."""

    name: str
    look: Callable[[], Finding | Awaitable[Finding]]

    async def finding(self) -> Finding:
        """What it finds now."""
        found = self.look()
        return found if isinstance(found, Finding) else await found


PING = Check(name="ping", look=lambda: WELL)
"""Answers because it can; stands in where there is no other check."""


class Slis:
    """Results of the health checks as metrics of their own: `/metrics/slis`.

    Few and read often; a DELETE resets them. Names and labels are those of
    k8s.io/component-base, metrics/prometheus/slis.
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
        """Record the result of a check below a path of this kind."""
        self._last.labels(name, kind).set(ok)
        self._all.labels(name, "success" if ok else "error", kind).inc()

    async def page(self, request: Request) -> Response:
        """Return the metrics; reset them after a DELETE."""
        if request.method == "DELETE":
            self._last.clear()
            self._all.clear()
            return text("metrics reset\n")
        return Response(body=metrics.exposition(self._registry), content_type=metrics.CONTENT_TYPE)


class Health:
    """One of the three health paths.

    Args:
        name: `healthz`, `livez` or `readyz`.
        checks: those of now; they may change while the process runs.
        slis: counts what checks find.
    """

    def __init__(self, name: str, checks: Callable[[], Sequence[Check]], *, slis: Slis) -> None:
        self._name = name
        self._checks = checks
        self._slis = slis
        self._failing: frozenset[str] = frozenset()
        self._log = log.logger("serving")

    @property
    def pages(self) -> dict[str, Handler]:
        """What to serve, by path."""
        return {f"/{self._name}": self.all, f"/{self._name}/": self.one}

    async def all(self, request: Request) -> Response:
        """The answer about all checks."""
        excluded = set(request.query.getall("exclude", ()))
        lines: list[str] = []
        failing: list[str] = []
        for check in self._checks() or (PING,):
            if check.name in excluded:
                excluded.discard(check.name)
                lines.append(f"[+]{check.name} excluded: ok")
                continue
            finding = await self._look(check)
            detail = f": {finding.detail}" if finding.detail else ""
            if finding.ok:
                lines.append(f"[+]{check.name} ok{detail}")
            else:
                lines.append(f"[-]{check.name} failed{detail}")
                failing.append(check.name)
        if "exclude" not in request.query:
            # Else anybody could have it logged that all is well again, as often as they like.
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
        """The answer about the check that the path names."""
        wanted = request.path.removeprefix(f"/{self._name}/")
        for check in self._checks() or (PING,):
            if check.name == wanted:
                finding = await self._look(check)
                if finding.ok:
                    return text("ok")
                return text(f"internal server error: {finding.detail}\n", 500)
        return text("404 page not found\n", 404)

    async def _look(self, check: Check) -> Finding:
        finding = await check.finding()
        self._slis.count(check.name, self._name, ok=finding.ok)
        # Anybody may ask, and what the cloud or a provider says may be long.
        return Finding(ok=finding.ok, detail=redact.public(" ".join(finding.detail.split())))

    def _note(self, failing: Sequence[str]) -> None:
        now = frozenset(failing)
        if now != self._failing:
            if now:
                self._log.warning("health check fails", path=self._name, checks=sorted(now))
            else:
                self._log.info("health checks pass again", path=self._name)
        self._failing = now
