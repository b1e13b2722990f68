"""Metrics under the names of openstack-cloud-controller-manager."""

from __future__ import annotations

import contextlib
import re
from collections.abc import AsyncIterator

from ccm import cloud
from ccm.base import metrics
from ccm.base.clock import monotonic


class Operations:
    """Number, errors and duration in seconds of operations; each metric has one label."""

    def __init__(self, total: str, prefix: str, label: str, text: str) -> None:
        self._total = metrics.counter(total, f"{text}.", [label])
        self._errors = metrics.counter(f"{prefix}_errors", f"Failed: {text}.", [label])
        self._duration = metrics.histogram(
            f"{prefix}_duration_seconds",
            f"Duration: {text}.",
            [label],
            buckets=(0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 300),
        )

    @contextlib.asynccontextmanager
    async def observe(self, operation: str) -> AsyncIterator[None]:
        """Measure the block, or the async method that this decorates.

        A cloud that is still at work (`RetryAfter`) is no error.
        """
        began = monotonic()
        self._total.labels(operation).inc()
        try:
            yield
        except cloud.RetryAfter:
            raise
        except BaseException:
            self._errors.labels(operation).inc()
            raise
        finally:
            self._duration.labels(operation).observe(monotonic() - began)


REQUESTS = Operations(
    "openstack_api_requests", "openstack_api_request", "request", "Requests to OpenStack"
)
"""Requests by resource and action, such as `loadbalancer_create`."""

RECONCILES = Operations(
    "cloudprovider_openstack_reconcile",
    "cloudprovider_openstack_reconcile",
    "operation",
    "Changes of load balancers and routes",
)
"""Calls of the provider, such as `loadbalancer_ensure`."""


_PATH = re.compile(r"(?:/v[\d.]+)?(?:/lbaas)?/(?:os-)?([a-z_-]+?)s(?:/detail)?(/.+)?")


def request_name(method: str, path: str) -> str:
    """Return the label of a request: `GET /v2.0/ports/<ID>` -> `port_get`.

    Only the first collection of a path counts, so that IDs and names never become labels.
    """
    match = _PATH.fullmatch(path.partition("?")[0])
    if match is None:
        return "version_list"
    if match[2] is None:
        action = "list" if method == "GET" else "create"
    else:
        action = {"GET": "get", "DELETE": "delete"}.get(method, "update")
    return f"{match[1].replace('-', '_')}_{action}"
