"""Address lists: nothing is added twice, nothing is changed in place."""

from __future__ import annotations

import pytest

from ccm.cloud import NodeAddress, add_to_node_addresses, address

EXTERNAL = address("ExternalIP", "1.1.1.1")
INTERNAL = address("InternalIP", "10.1.1.1")
HOST = address("Hostname", "localhost")


@pytest.mark.parametrize(
    ("existing", "added", "expected"),
    [
        ([], [], []),
        ([], [EXTERNAL, HOST], [EXTERNAL, HOST]),
        ([], [EXTERNAL, EXTERNAL], [EXTERNAL]),
        ([EXTERNAL, INTERNAL], [EXTERNAL, HOST], [EXTERNAL, INTERNAL, HOST]),
    ],
    ids=["nothing", "both in order", "once", "only what is missing"],
)
def test_addresses_are_added_once(
    existing: list[NodeAddress], added: list[NodeAddress], expected: list[NodeAddress]
) -> None:
    before = list(existing)

    assert add_to_node_addresses(existing, *added) == expected
    assert existing == before
