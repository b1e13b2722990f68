"""SECURITY.md is true about rights, ports, flags, paths and files."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ccm.app.machines.commands import MACHINE_CONTROLLER
from ccm.app.options import FLAGS
from ccm.serving import handler_chain
from tests.manifests import shipped
from tests.manifests.shipped import ROOT

TEXT = (ROOT / "SECURITY.md").read_text()
FOREIGN = {"kubelet-certificate-authority", "build-arg"}
"""Flags of other programs."""


def rows(start: str) -> Iterator[list[str]]:
    """The cells of a table, by its first heading, without the headings."""
    table = TEXT[TEXT.index(f"\n| {start} |") :].split("\n\n")[0].strip().splitlines()
    for line in table[2:]:
        yield [cell.strip() for cell in line.strip("|").split(" | ")]


def code(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", text)


def test_the_documented_rights_match_the_manifests() -> None:
    told = set()
    for cells in rows("right"):
        resource, *verbs = code(cells[0])
        told |= {(resource, verb) for verb in verbs}

    granted = shipped.rights(shipped.objects(*shipped.identity_files(separate_accounts=True)))
    assert told == {(right.resource, right.verb) for right in granted}


def test_rights_of_the_component_alone_are_marked_as_such() -> None:
    base = {right.resource for right in shipped.rights(shipped.objects(*shipped.identity_files()))}

    told = {code(cells[0])[0] for cells in rows("right") if cells[1].startswith("only with ")}

    assert told == {code(cells[0])[0] for cells in rows("right")} - base


def test_bound_cluster_roles_of_kubernetes_are_documented() -> None:
    found = shipped.objects(*shipped.identity_files(separate_accounts=True))
    own = {each["metadata"]["name"] for each in found}
    foreign = {each["roleRef"]["name"] for each in shipped.bindings(found)} - own

    assert len(foreign) == 2
    assert {name for name in foreign if f"`{name}`" not in TEXT} == set()


@pytest.mark.parametrize("prefix", ["", "webhook-"])
def test_documented_ports_and_addresses_are_the_defaults(prefix: str) -> None:
    (cells,) = [row for row in rows("port") if f"`--{prefix}secure-port`" in row[0]]

    assert code(cells[0])[0] == str(FLAGS[f"{prefix}secure-port"].default)
    assert code(cells[1]) == [
        str(FLAGS[f"{prefix}bind-address"].default),
        f"--{prefix}bind-address",
    ]


def test_documented_paths_without_authorization_are_the_default() -> None:
    (cells, _) = rows("port")
    told = [word for word in code(cells[2]) if word.startswith("/")]

    assert sorted(told) == sorted(FLAGS["authorization-always-allow-paths"].default)


def test_every_documented_flag_exists() -> None:
    told = set(re.findall(r"`--([a-z][a-z0-9-]*)", TEXT)) | set(re.findall(r" --([a-z-]+)=", TEXT))

    assert len(told) > 15
    assert told - FOREIGN - set(FLAGS) - set(MACHINE_CONTROLLER.flags) == set()


def test_privileged_paths_are_documented() -> None:
    assert [path for path in handler_chain.PRIVILEGED_PREFIXES if f"`{path}" not in TEXT] == []


def test_every_row_of_the_threat_table_names_existing_tests() -> None:
    found = [code(cells[-1]) for cells in rows("who")]

    assert len(found) == 5
    for named in found:
        assert named
        for path, name in (test.split("::") for test in named):
            assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.M), name
