"""Client CAs that the HTTPS server trusts, and its reviews of callers."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from structlog.testing import capture_logs

from ccm.app import options
from ccm.app.delegated_auth import (
    ACCESS_REVIEWS,
    CHECK_S,
    RETRY_S,
    TOKEN_REVIEWS,
    TRIES,
    DynamicClientCA,
    ReviewClient,
)
from ccm.app.provider import Misconfigured
from ccm.base import metrics
from ccm.base.tasks import cancel_and_join, spawn
from ccm.kube import errors
from ccm.serving.authentication import ReviewFailed, Trust, UserInfo
from ccm.serving.handler_chain import AccessAttributes, AccessDecision
from ccm.serving.tls import CertificateError
from ccm.testing.clock import advance
from tests import pki
from tests.unit.app.api import Api

pytestmark = pytest.mark.virtual_time


DOWN = errors.Unreachable("refused", kind="refused")
REFUSED = errors.Forbidden(status=403, reason="Forbidden", message="not you")
STRANGE = errors.Unauthorized(status=401, reason="Unauthorized", message="who are you")
ABSENT = errors.NotFound(status=404, reason="NotFound", message="no such map")


class Cluster:
    """An API server with its authentication ConfigMap, and the trust that was adopted."""

    def __init__(self, folder: Path) -> None:
        self.clients = pki.Authority(folder, "clients")
        self.proxies = pki.Authority(folder, "proxies")
        self.api = Api(self.settings(self.clients, self.proxies))
        self.adopted: list[Trust] = []

    @property
    def trust(self) -> Trust:
        """Return the trust that was adopted last."""
        return self.adopted[-1]

    def settings(self, clients: pki.Authority, proxies: pki.Authority) -> dict[str, Any]:
        """The config map of a cluster that believes these."""
        data = {
            "client-ca-file": clients.own.decode(),
            "requestheader-client-ca-file": proxies.own.decode(),
            "requestheader-allowed-names": '["front"]',
            "requestheader-username-headers": '["X-Remote-User"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
        }
        return {"data": data}

    async def started(self, *flags: str, asked: bool = True) -> DynamicClientCA:
        """Start the dynamic client CA with these flags; without `asked` it reads no ConfigMap."""
        chosen = options.parse(["--cloud-provider=sim", *flags])
        found = DynamicClientCA(chosen, self.api if asked else None, self.adopted.append)
        await found.start()
        return found


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    return Cluster(tmp_path)


async def run_for(kept: DynamicClientCA, seconds: float = 0.0) -> None:
    """Run the refresh for this time; raise what it raises."""
    task = spawn(kept.run(), name="follow")
    await advance(seconds)
    await (task if task.done() else cancel_and_join(task))


@pytest.mark.row("serving-lookup-01")
async def test_forbidden_authentication_configmap_is_a_configuration_error(
    cluster: Cluster,
) -> None:
    cluster.api.now(REFUSED)
    kept = await cluster.started()

    with pytest.raises(Misconfigured, match=r"grant the role .* or pass --authentication-"):
        await kept.run()


@pytest.mark.row("serving-lookup-02")
@pytest.mark.parametrize(
    ("trouble", "flags", "asked"),
    [
        pytest.param(REFUSED, ["--authentication-tolerate-lookup-failure"], 1, id="tolerated"),
        pytest.param(REFUSED, ["--authentication-skip-lookup"], 0, id="skipped"),
        pytest.param(ABSENT, [], 1, id="not there"),
    ],
)
async def test_server_starts_when_the_configmap_lookup_is_optional_or_it_is_absent(
    cluster: Cluster, trouble: Exception, flags: list[str], asked: int
) -> None:
    cluster.api.now(trouble)
    kept = await cluster.started(*flags)

    await run_for(kept)

    assert len(cluster.api.sent) == asked
    assert not kept.pending_reason
    assert cluster.trust == Trust()


@pytest.mark.row("serving-lookup-03")
@pytest.mark.parametrize("trouble", [DOWN, STRANGE], ids=["down", "credentials refused"])
async def test_authentication_configmap_is_retried_while_the_api_server_is_down(
    cluster: Cluster, trouble: Exception
) -> None:
    cluster.api.now(trouble, trouble, cluster.settings(cluster.clients, cluster.proxies))
    with capture_logs() as lines:
        kept = await cluster.started()
        await run_for(kept)
        assert "not read yet" in kept.pending_reason
        await run_for(kept, RETRY_S)

    assert not kept.pending_reason
    assert cluster.trust.clients.pem == cluster.clients.own
    assert [line["log_level"] for line in lines] == ["warning", "info"]


@pytest.mark.row("serving-lookup-04")
async def test_changed_authentication_configmap_is_adopted(cluster: Cluster) -> None:
    kept = await cluster.started()
    await run_for(kept, CHECK_S)
    changes = len(cluster.adopted)
    assert cluster.trust.clients.pem == cluster.clients.own

    cluster.api.now(cluster.settings(cluster.proxies, cluster.clients))
    await run_for(kept, CHECK_S)

    assert cluster.trust.clients.pem == cluster.proxies.own
    assert len(cluster.adopted) == changes + 1


async def test_unusable_client_ca_fails_the_start() -> None:
    with pytest.raises(Misconfigured, match="no TLS"):
        await DynamicClientCA(
            options.Options(), None, Mock(side_effect=CertificateError("no TLS"))
        ).start()


ALICE = UserInfo(name="alice", uid="7", groups=("devs",), extra=(("scope", ("a", "b")),))
REVIEWS_DOWN = errors.Unreachable("refused", kind="refused")
REVIEWS_REFUSED = errors.Forbidden(status=403, reason="Forbidden", message="not you")


def reviews(*answers: Any) -> tuple[ReviewClient, Api]:
    """Return a review client, and its API server with these statuses, bodies or errors."""
    raw = [{"status": one} if isinstance(one, dict) else one for one in answers]
    api = Api(*raw)
    return ReviewClient(api), api


def counted(kind: str, code: str) -> float:
    name = f"apiserver_delegated_{kind}_request_total"
    return metrics.REGISTRY.get_sample_value(name, {"code": code}) or 0.0


async def test_token_review_returns_the_user() -> None:
    user = {"username": "alice", "uid": "7", "groups": ["devs"], "extra": {"scope": ["a", "b"]}}
    asks, api = reviews({"authenticated": True, "user": user})
    before = counted("authn", "201")

    assert await asks.review_token("token") == ALICE

    ((method, path, review),) = api.sent
    assert (method, path) == ("POST", TOKEN_REVIEWS)
    assert review["kind"] == "TokenReview"
    assert review["spec"] == {"token": "token"}
    assert counted("authn", "201") == before + 1


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "error": "expired"},
        {"authenticated": False, "user": {"username": "alice"}},
    ],
)
async def test_token_review_returns_none_for_a_rejected_token(status: dict[str, Any]) -> None:
    assert await reviews(status)[0].review_token("token") is None


@pytest.mark.parametrize(
    ("status", "decision"),
    [
        ({"allowed": True, "reason": "a role"}, AccessDecision(allowed=True, reason="a role")),
        ({"allowed": False}, AccessDecision(allowed=False)),
        ({"allowed": True, "denied": True}, AccessDecision(allowed=False)),
    ],
)
async def test_subject_access_review_returns_the_decision(
    status: dict[str, Any], decision: AccessDecision
) -> None:
    asks, api = reviews(status)

    answer = await asks.review_access(AccessAttributes(user=ALICE, verb="get", path="/metrics"))

    ((_, path, review),) = api.sent
    assert answer == decision
    assert path == ACCESS_REVIEWS
    assert review["spec"] == {
        "user": "alice",
        "uid": "7",
        "groups": ["devs"],
        "extra": {"scope": ["a", "b"]},
        "nonResourceAttributes": {"path": "/metrics", "verb": "get"},
    }


@pytest.mark.parametrize(
    ("trouble", "code", "tries"), [(REVIEWS_DOWN, "<error>", TRIES), (REVIEWS_REFUSED, "403", 1)]
)
async def test_review_is_retried_when_unreachable_but_not_when_refused(
    trouble: errors.KubeError, code: str, tries: int
) -> None:
    asks, api = reviews(trouble)
    before = counted("authz", code)

    with pytest.raises(ReviewFailed, match=str(trouble).split()[-1].strip("()")):
        await asks.review_access(AccessAttributes(user=ALICE, verb="get", path="/metrics"))

    assert len(api.sent) == tries
    assert counted("authz", code) == before + tries


@pytest.mark.parametrize("answer", [b"<html>", b"{}", b'{"status": null}', b"[]"])
async def test_undecodable_review_answer_fails(answer: bytes) -> None:
    with pytest.raises(ReviewFailed, match="cannot be decoded"):
        await reviews(answer)[0].review_token("token")


async def test_authentication_configmap_provides_the_client_cas(cluster: Cluster) -> None:
    kept = await cluster.started()
    assert cluster.trust == Trust()
    assert kept.pending_reason

    await run_for(kept)

    assert not kept.pending_reason
    assert cluster.trust.clients.pem == cluster.clients.own
    proxies = cluster.trust.proxies
    assert proxies.authorities.pem == cluster.proxies.own
    assert (proxies.names, proxies.user_headers) == (("front",), ("X-Remote-User",))
    assert (proxies.group_headers, proxies.uid_headers) == (("X-Remote-Group",), ())
    assert proxies.extra_prefixes == ("X-Remote-Extra-",)
    assert cluster.trust.pem is not None
    assert cluster.clients.own in cluster.trust.pem


@pytest.mark.parametrize("names", [(), ("gate", "door")])
async def test_flags_override_the_authentication_configmap(
    cluster: Cluster, names: tuple[str, ...]
) -> None:
    kept = await cluster.started(
        f"--client-ca-file={cluster.proxies.file}",
        f"--requestheader-client-ca-file={cluster.clients.file}",
        "--requestheader-username-headers=x-user",
        f"--requestheader-allowed-names={','.join(names)}",
    )
    await run_for(kept)

    assert cluster.trust.clients.pem == cluster.proxies.own
    proxies = cluster.trust.proxies
    assert proxies.authorities.pem == cluster.clients.own
    assert (proxies.user_headers, proxies.names) == (("x-user",), names)


@pytest.mark.parametrize(
    "later",
    [
        pytest.param(DOWN, id="down"),
        pytest.param(REFUSED, id="refused"),
        pytest.param({"data": {"client-ca-file": "nonsense"}}, id="no authority"),
        pytest.param({"data": {"requestheader-username-headers": "{"}}, id="no list"),
    ],
)
async def test_unusable_update_keeps_the_former_client_cas(cluster: Cluster, later: object) -> None:
    kept = await cluster.started()
    await run_for(kept)
    changes = len(cluster.adopted)

    cluster.api.now(later)
    await run_for(kept, CHECK_S)

    assert cluster.trust.clients.pem == cluster.clients.own
    assert len(cluster.adopted) == changes
