"""Which Pods run a cloud-controller-manager, and for which cloud."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from ccm.doctor import leases, objects


def managers(*pods: dict[str, Any]) -> list[tuple[str, str, str]]:
    decoded = msgspec.convert({"items": list(pods)}, objects.Pods)
    return [(one.pod, one.host, one.provider) for one in leases._in_pods(decoded.items or ())]


def pod(*words: str, image: str = "registry/app", **more: Any) -> dict[str, Any]:
    status = {"phase": more.pop("phase", "Running")}
    container = {"image": image, "command": list(words[:1]), "args": list(words[1:])}
    spec = {"containers": [container], **more}
    return {"metadata": {"name": "p"}, "spec": spec, "status": status}


@pytest.mark.parametrize(
    ("words", "image", "provider"),
    [
        (("/bin/acme-cloud-controller-manager", "--cloud-provider=acme"), "x", "acme"),
        (("/entry", "--cloud-provider", "acme", "--v=2"), "x", "acme"),
        (("/entry",), "registry/cloud-controller-manager:v1", ""),
        (("/bin/acme-cloud-controller-manager", "--cloud-provider"), "x", ""),
    ],
)
def test_a_manager_is_known_by_name_or_flag(
    words: tuple[str, ...], image: str, provider: str
) -> None:
    assert managers(pod(*words, image=image)) == [("p", "p", provider)]


@pytest.mark.parametrize(
    "other",
    [
        pod("kube-apiserver", "--cloud-provider=external"),
        pod("/bin/app", "--verbose"),
        pod(),
        pod("cloud-controller-manager", "--cloud-provider=x", phase="Succeeded"),
    ],
)
def test_others_are_not(other: dict[str, Any]) -> None:
    assert managers(other) == []


def test_in_the_hosts_network_a_process_goes_by_the_nodes_name() -> None:
    given = pod("cloud-controller-manager", "--cloud-provider=x", hostNetwork=True, nodeName="n7")

    assert managers(given) == [("p", "n7", "x")]
    assert str(leases.Manager(pod="p", host="n7", image="i", provider="x")) == (
        "Pod p (i, --cloud-provider=x)"
    )
