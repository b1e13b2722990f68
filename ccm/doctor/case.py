"""What the checks know together: each adds what it learnt for those that come after it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from ccm.app.options import Options
from ccm.cloud.interface import Cloud
from ccm.cloud.registry import Opener
from ccm.cloud.types import InstanceListing
from ccm.doctor import LIMIT_S
from ccm.doctor.finding import Finding
from ccm.kube.client import Client
from ccm.kube.config import SERVICE_ACCOUNT, ClusterConfig
from ccm.kube.resources import NODES
from ccm.model import Node
from ccm.model.meta import Wire

PROGRAM = "ccm-doctor"
"""What the API server's logs call us."""


class User(Wire, frozen=True, kw_only=True):
    """Who the API server takes somebody for."""

    username: str = ""
    groups: list[str] | None = None


@dataclass(slots=True, kw_only=True)
class Case:
    """One examination.

    Attributes:
        options: the daemon's flags.
        environ: the environment, for kubeconfig and exec plugins.
        account: whose permissions are asked about; empty: our own.
        limit_s: longest time of one check.
        service_account: folder with the token of a Pod.
        reads_only: the way to the API server refuses whatever is no GET; no review is possible.
        exits: closes what the checks opened.
        findings: what was found so far, by check.
        causes: check that cannot be made -> the one whose finding is the cause.
        cluster: where the API server is; set by `kubeconfig`.
        client: calls to it; set by `kubeconfig`.
        user: who we are there; set by `identity`.
        skew_s: seconds that the API server's clock is ahead of ours; set by `clock`.
        holder: who leads; empty: nobody; None: not known; set by `lease`.
        opener: opens the provider; set by `provider`.
        cloud: the open provider; set by `cloud-config`.
        listing: all instances; None where the provider cannot list; set by `cloud`.
        without_instance: names of nodes -> why they have none; set by `instances`.
        others: what a cluster beside ours is to controllers -> calls to it, see `reach.at`.
    """

    options: Options
    environ: Mapping[str, str]
    account: str = ""
    limit_s: float = LIMIT_S
    service_account: Path = SERVICE_ACCOUNT
    reads_only: bool = False
    exits: AsyncExitStack = field(default_factory=AsyncExitStack)
    findings: dict[str, Finding] = field(default_factory=dict)
    causes: dict[str, str] = field(default_factory=dict)
    cluster: ClusterConfig = field(init=False)
    client: Client = field(init=False)
    user: User = field(default_factory=User)
    skew_s: float | None = None
    holder: str | None = None
    opener: Opener = field(init=False)
    cloud: Cloud = field(init=False)
    listing: InstanceListing | None = None
    without_instance: dict[str, str] = field(default_factory=dict)
    others: dict[str, Client] = field(default_factory=dict)
    _nodes: Sequence[Node] | None = None

    async def nodes(self) -> Sequence[Node]:
        """All nodes, asked for once. Raises KubeError."""
        if self._nodes is None:
            pages = self.client.resource(NODES).pages()
            found = [node async for page in pages for node in page.items]
            self._nodes = sorted(found, key=lambda node: node.name)
        return self._nodes

    def is_usable(self, check: str) -> bool:
        """Whether a check was made and left something to build on."""
        finding = self.findings.get(check)
        return finding is not None and finding.is_usable
