"""Controller names, aliases, and what a list of them turns on."""

from __future__ import annotations

import re
from typing import Any

import pytest

from ccm.app.options import names
from ccm.app.options.controllers import ALIASES, MANIFESTS
from ccm.runtime.manifest import Manifest


@pytest.mark.row("daemon-names-01")
def test_the_promised_names() -> None:
    """Names, aliases, client names and metric names are those of the Go reference."""
    assert [(c.name, c.alias, c.client, c.metric) for c in MANIFESTS] == [
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


@pytest.mark.row("daemon-names-01")
@pytest.mark.parametrize("controller", MANIFESTS, ids=lambda c: c.name)
def test_the_form_of_a_name(controller: Manifest[Any]) -> None:
    """A canonical name is lower-case words with dashes and ends in -controller."""
    assert re.fullmatch(r"[a-z]([-a-z]*[a-z])?", controller.name)
    assert controller.name.endswith("-controller")


@pytest.mark.row("daemon-names-02", "daemon-names-06")
@pytest.mark.parametrize(
    ("requested", "aliases", "resolved"),
    [
        (
            "service-controller,-service,route,-cloud-node-lifecycle-controller",
            {"service": "service-controller", "route": "route-controller"},
            "service-controller,-service-controller,route-controller,-cloud-node-lifecycle-controller",
        ),
        (
            "green,-crimson,ultramarine,-pink",
            {"crimson": "red", "pink": "red", "ultramarine": "blue"},
            "green,-red,blue,-red",
        ),
        (
            "*,-service,cloud-node",
            ALIASES,
            "*,-service-lb-controller,cloud-node-controller",
        ),
        (
            "service-controller,-route-controller",
            ALIASES,
            "service-lb-controller,-node-route-controller",
        ),
    ],
)
def test_aliases_are_replaced(requested: str, aliases: dict[str, str], resolved: str) -> None:
    """An alias becomes its canonical name, with or without a dash in front."""
    found = names.resolve(requested.split(","), aliases=aliases)

    assert found == tuple(resolved.split(","))


@pytest.mark.row("daemon-names-03")
@pytest.mark.parametrize(
    ("name", "requested", "enabled"),
    [
        ("bravo", "alpha,bravo,-charlie", True),
        ("charlie", "alpha,bravo,-charlie", False),
        ("alpha", "*", True),
        ("delta", "*", False),
        ("alpha", "*,-charlie", True),
        ("charlie", "*,-charlie", False),
        ("foxtrot", "alpha,bravo,-charlie", False),
        ("delta", "*,delta", True),
        ("alpha", "alpha,-alpha", True),
        ("alpha", "-alpha,alpha", False),
        ("a", "a,b", True),
        ("a", "a,-b", True),
        ("b", "a,-b", False),
        ("a", "-b", False),
    ],
)
def test_enabling(name: str, requested: str, enabled: bool) -> None:
    """The first entry that names it decides, else the star unless off by default."""
    found = names.is_enabled(name, requested.split(","), off_by_default={"delta", "echo"})

    assert found is enabled


@pytest.mark.row("daemon-names-03")
def test_an_empty_list_enables_nothing() -> None:
    """Without a star and without the name, a controller is off."""
    assert names.is_enabled("alpha", []) is False


@pytest.mark.row("daemon-names-04")
@pytest.mark.parametrize(
    ("requested", "known", "unknown"),
    [
        (["*"], [], []),
        ([], ["alpha"], []),
        (["alpha", "-bravo"], ["alpha", "bravo"], []),
        (["alpha", "-zulu", "yankee"], ["alpha"], ["zulu", "yankee"]),
        (["cloud-node", "-route", "service-lb-controller", "*"], names.known_names(), []),
        (["service-controller", "-route-controller"], names.known_names(), []),
        (["node-controller"], names.known_names(), ["node-controller"]),
    ],
)
def test_unknown_names(requested: list[str], known: list[str], unknown: list[str]) -> None:
    """Canonical names, aliases and former names are known; client names are not."""
    assert names.unknown(requested, known) == unknown


@pytest.mark.row("daemon-names-05")
@pytest.mark.parametrize(
    ("requested", "enabled"),
    [
        ("*", "cloud-node cloud-node-lifecycle service route"),
        ("*,-service,-route", "cloud-node cloud-node-lifecycle"),
        ("cloud-node", "cloud-node"),
        ("-service", ""),
        ("route", "route"),
    ],
)
def test_what_a_list_starts(requested: str, enabled: str) -> None:
    assert [entry.alias for entry in names.enabled(requested.split(","))] == enabled.split()
