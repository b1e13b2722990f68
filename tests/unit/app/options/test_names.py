"""Controller names, aliases, and what a list of them turns on."""

from __future__ import annotations

import pytest

from ccm.app.options import names
from ccm.app.options.names import (
    MANIFESTS,
)


@pytest.mark.row("daemon-names-01")
def test_the_promised_names() -> None:
    """Names, aliases, client names and metric names are those of the Go reference."""
    assert [(c.name, c.alias, c.client, c.metric) for c in MANIFESTS[:4]] == [
        ("cloud-node-controller", "cloud-node", "node-controller", "cloud-node"),
        (
            "cloud-node-lifecycle-controller",
            "cloud-node-lifecycle",
            "node-controller",
            "cloud-node-lifecycle",
        ),
        ("service-lb-controller", "service", "service-controller", "service"),
        ("node-route-controller", "route", "route-controller", "route"),
    ]


def test_machine_controllers_run_only_where_they_are_named() -> None:
    """Another program may see to the same objects already."""
    named = [each.name for each in MANIFESTS[4:]]

    assert {each.name for each in names.enabled(["*"])}.isdisjoint(named)
    wanted = ["*", *(each.alias for each in MANIFESTS[4:])]
    assert [each.name for each in names.enabled(wanted)][4:] == named


@pytest.mark.row("daemon-names-03")
@pytest.mark.parametrize(
    ("name", "requested", "enabled"),
    [
        ("bravo", "alpha,bravo,-charlie", True),
        ("charlie", "alpha,bravo,-charlie", False),
        ("alpha", "*", True),
        ("delta", "*", False),
        ("charlie", "*,-charlie", False),
        ("foxtrot", "alpha,bravo,-charlie", False),
        ("delta", "*,delta", True),
        ("alpha", "alpha,-alpha", True),
        ("alpha", "-alpha,alpha", False),
        ("a", "-b", False),
        ("a", "", False),
    ],
)
def test_enabling(name: str, requested: str, enabled: bool) -> None:
    """The first entry that names it decides, else the star unless off by default."""
    found = names.is_enabled(name, requested.split(","), off_by_default={"delta", "echo"})

    assert found is enabled


@pytest.mark.row("daemon-names-02", "daemon-names-05", "daemon-names-06")
@pytest.mark.parametrize(
    ("requested", "enabled"),
    [
        ("*", "cloud-node cloud-node-lifecycle service route"),
        ("*,-service,-route", "cloud-node cloud-node-lifecycle"),
        ("cloud-node", "cloud-node"),
        ("-service", ""),
        ("route", "route"),
        (
            "service-controller,cloud-node-controller,node-route-controller",
            "cloud-node service route",
        ),
        ("-route-controller,-cloud-node-lifecycle-controller,*", "cloud-node service"),
    ],
)
def test_what_a_list_starts(requested: str, enabled: str) -> None:
    assert [entry.alias for entry in names.enabled(requested.split(","))] == enabled.split()
