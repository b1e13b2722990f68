"""The vendor's OpenAPI documents as judges of what goes over the wire.

The public originals are in the repository stackitcloud/stackit-api-specifications, as
`services/iaas/v2/iaas.json` and `services/load-balancer/v2/load-balancer.json`.
"""

from __future__ import annotations

from collections.abc import Sequence

from ccm.testing.fake_api import Exchange
from tests.documents import Document

IAAS = Document("stackit-iaas-v2.json", host="https://iaas.api.stackit.cloud")
BALANCERS = Document(
    "stackit-load-balancer-v2.json", host="https://load-balancer.api.stackit.cloud"
)


def load() -> None:
    """Skip the test without them."""
    IAAS.load()
    BALANCERS.load()


def violations(exchanges: Sequence[Exchange]) -> list[str]:
    """Everything in which calls and answers are not as the documents say."""
    asked = [one for one in exchanges if one.path != "/token"]
    of_balancers = [
        one for one in asked if "/load-balancers" in one.path or "/credentials" in one.path
    ]
    others = [one for one in asked if one not in of_balancers]
    return [*IAAS.violations(others), *BALANCERS.violations(of_balancers)]
