"""Metrics of health checks, on a page of their own: `/metrics/slis`.

They are few and read often, and a DELETE starts them anew. Names and labels are those of
k8s.io/component-base, metrics/prometheus/slis.
"""

from __future__ import annotations

from ccm.serving.http import Request, Response, text

_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Slis:
    """What the health checks found."""

    def __init__(self) -> None:
        self._last: dict[tuple[str, str], bool] = {}
        self._counts: dict[tuple[str, str, str], int] = {}

    def count(self, name: str, kind: str, *, ok: bool) -> None:
        """A check of this name, below a path of this kind, found this."""
        self._last[name, kind] = ok
        key = (name, kind, "success" if ok else "error")
        self._counts[key] = self._counts.get(key, 0) + 1

    async def page(self, request: Request) -> Response:
        """All of it; DELETE starts anew."""
        if request.method == "DELETE":
            self._last.clear()
            self._counts.clear()
            return text("metrics reset\n")
        return Response(body="".join(self._lines()).encode(), content_type=_TYPE)

    def _lines(self) -> list[str]:
        gauge, counter = "kubernetes_healthcheck", "kubernetes_healthchecks_total"
        lines = [
            f"# HELP {gauge} [STABLE] This metric records the result of a single healthcheck.\n",
            f"# TYPE {gauge} gauge\n",
        ]
        for (name, kind), ok in sorted(self._last.items()):
            lines.append(f'{gauge}{{name="{_quoted(name)}",type="{kind}"}} {int(ok)}\n')
        lines += [
            f"# HELP {counter} [STABLE] This metric records the results of all healthcheck.\n",
            f"# TYPE {counter} counter\n",
        ]
        for (name, kind, outcome), count in sorted(self._counts.items()):
            labels = f'name="{_quoted(name)}",status="{outcome}",type="{kind}"'
            lines.append(f"{counter}{{{labels}}} {count}\n")
        return lines


def _quoted(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
