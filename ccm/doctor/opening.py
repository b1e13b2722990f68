"""Opens the way to a cluster and to its cloud for a command that needs both."""

from __future__ import annotations

from ccm.doctor import provider, reach
from ccm.doctor.case import Case
from ccm.doctor.finding import Verdict


class NotOpened(Exception):
    """It cannot be done; the message says why, and what to do.

    Attributes:
        check: the check that tells of it; empty if none does.
    """

    def __init__(self, message: str, *, check: str = "") -> None:
        super().__init__(message)
        self.check = check


async def opened(case: Case) -> None:
    """Set the client and the cloud of a case; its `exits` close them.

    Raises:
        NotOpened: there is no way.
    """
    for name, check in (
        ("kubeconfig", reach.kubeconfig),
        ("provider", provider.provider),
        ("cloud-config", provider.cloud_config),
        ("cluster-id", provider.cluster_id),
    ):
        finding = case.findings[name] = await check(case)
        if finding.verdict is Verdict.FAIL:
            told = (finding.found, *finding.details, *finding.advice)
            raise NotOpened("; ".join(told), check=name)
