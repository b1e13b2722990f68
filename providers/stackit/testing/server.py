"""The fake over HTTP: three APIs behind one address, `/iaas`, `/balancers` and `/token`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aiohttp import hdrs, web

from ccm.testing import fake_api
from ccm.testing.fake_api import Row, Witness

from . import api, state
from .state import ApiError, Cloud, Settings
from .tokens import Account

IAAS, BALANCERS = "/iaas", "/balancers"

NETWORK = "7d0a5b1e-3c1f-4b8e-9d52-6f2a1c9e4b70"
IMAGE = "e24b1440-8d9c-431b-8da4-02916720fab5"
"""There from the start."""


class Service(fake_api.FakeApi):
    """One account over HTTP.

    Args:
        settings: how it behaves.
        witness: told of every call that got an answer of the API itself.
    """

    def __init__(self, settings: Settings | None = None, *, witness: Witness | None = None) -> None:
        rows = [
            *self._rows_of(api.IAAS, IAAS),
            *self._rows_of(api.BALANCERS, BALANCERS),
            Row(method="POST", path="/token", handle=self._grant),
        ]
        super().__init__(rows, witness)
        self.cloud = Cloud(settings)
        self.settings = self.cloud.settings
        self.account = Account()
        add_network(self.cloud, NETWORK, "k8s", "10.0.0.0/16")
        self.cloud.images[IMAGE] = {"id": IMAGE, "name": "flatcar", "diskFormat": "qcow2"}

    @property
    def latency_s(self) -> float:
        """Before each answer."""
        return self.settings.latency_s

    @property
    def writes(self) -> int:
        """How many calls changed something, or tried to; having a token is no change."""
        named = ((name, number) for name, number in self.calls.items() if name != "POST /token")
        return sum(number for name, number in named if not name.startswith("GET"))

    @property
    def requests(self) -> int:
        """How many calls there were, without those for tokens."""
        return self.calls.total() - self.calls["POST /token"]

    def _rows_of(self, operations: Sequence[api.Operation], prefix: str) -> list[Row]:
        return [
            Row(
                method=one.method,
                path=api.ROOT + one.path,
                prefix=prefix,
                handle=self._handler(one, is_of_balancers=prefix == BALANCERS),
            )
            for one in operations
        ]

    def _handler(
        self, row: api.Operation, *, is_of_balancers: bool
    ) -> Callable[[web.Request, Any], tuple[int, Any]]:
        def handle(request: web.Request, order: Any) -> tuple[int, Any]:
            self.cloud.settle()
            call = api.Call(
                path=dict(request.match_info), query=dict(request.query), body=order or {}
            )
            try:
                return row.handler(self.cloud, call)
            except ApiError as error:
                if is_of_balancers:
                    raise error.of_balancers(silent=self.settings.silent_404) from error
                raise

        return handle

    def _grant(self, _: web.Request, form: Any) -> tuple[int, Any]:
        return 200, self.account.grant(form, self.settings.token_s)

    def admit(self, request: web.Request) -> None:
        """With a token of the account."""
        if request.path == "/token" or self.settings.no_auth:
            return
        try:
            self.account.check(request.headers.get(hdrs.AUTHORIZATION, ""))
        except ApiError as error:
            raise _worded(error, request) from error

    def refusal(self, fault: fake_api.Fault) -> ApiError:
        """In a shape that both APIs' readers take for an error."""
        error = ApiError(fault.code or "server_error", fault.message, status=fault.status)
        error.body = {**error.body, "message": fault.message}
        return error

    def missing(self, request: web.Request, status: int) -> ApiError:
        """No words: it is a proxy that answers here."""
        error = ApiError("", f"no {request.method} {request.path}", status=status)
        error.body = "no route"
        return error

    def spoiled(self, answer: Any, fault: fake_api.Fault) -> Any:  # noqa: ARG002 - one kind
        """With servers that hibernate."""
        return fake_api.novel(answer, of_server="machineType", status="HIBERNATING")


def _worded(error: ApiError, request: web.Request) -> ApiError:
    is_of_balancers = request.path.startswith(BALANCERS)
    return error.of_balancers(silent=False) if is_of_balancers else error


def add_network(cloud: Cloud, number: str, name: str, prefix: str, ipv6: str = "") -> None:
    """A network that servers may be in."""
    cloud.networks[number] = {
        "id": number,
        "name": name,
        "status": "CREATED",
        "routed": True,
        "dhcp": True,
        "ipv4": {"prefixes": [prefix], "nameservers": ["192.0.2.53"]},
        **({"ipv6": {"prefixes": [ipv6], "nameservers": []}} if ipv6 else {}),
    }


serve = fake_api.serve
PROJECT, REGION = state.PROJECT, state.REGION
