"""What keeps the daemon's manifests from being applied: an image or a provider that is not there.

Run by `make manifests`. Reads rendered objects on standard input, says each fault with the line
that mends it, and exits with 1 if there is one.
"""

import sys
from collections.abc import Iterable, Iterator
from typing import Any

import yaml

LABEL, PROGRAMS = "app.kubernetes.io/name", ("cloud-controller-manager", "machine-controller")
"""The label of the daemon's Deployment, or its command's, in the base and in the chart."""

SIMULATED = "sim"
_FLAG = "--cloud-provider"
_CONTAINER = "/spec/template/spec/containers/0"


def faults(objects: Iterable[Any]) -> Iterator[str]:
    """What is wrong with the daemon's Deployment among these objects, and how to mend it."""
    found = [each for each in objects if each and each.get("kind") == "Deployment"]
    found = [each for each in found if each["metadata"].get("labels", {}).get(LABEL) in PROGRAMS]
    if not found:
        yield "there is no Deployment of the daemon among these objects"
    for deployment in found:
        name = deployment["metadata"]["name"]
        container = deployment["spec"]["template"]["spec"]["containers"][0]
        if fault := _of_image(container.get("image", "")):
            patch = _patch("image", "REGISTRY/kube-ccm:VERSION")
            yield f"Deployment {name} {fault}; put yours below `patches:`\n{_lines(name, patch)}"
        if fault := _of_provider(container.get("args", ())):
            patch = _patch("args/-", f"{_FLAG}=NAME")
            yield f"Deployment {name} {fault}; put yours below `patches:`\n{_lines(name, patch)}"


def _of_image(image: str) -> str:
    if not image:
        return "names no image"
    # A name alone is one of Docker's own images, and none of them is the daemon.
    return "" if "/" in image else f"names the image {image}, which no registry has"


def _of_provider(words: Iterable[str]) -> str:
    # The last one counts, as it does for the daemon.
    given = [word.partition("=")[2] for word in words if word.startswith(f"{_FLAG}=")]
    if not given or not given[-1]:
        return "names no provider"
    if given[-1] == SIMULATED:
        return f"names the provider {SIMULATED}, which knows a simulated cloud alone"
    return ""


def _patch(field: str, value: str) -> str:
    return f"{{op: add, path: {_CONTAINER}/{field}, value: {value}}}"


def _lines(name: str, patch: str) -> str:
    return f"  - target: {{kind: Deployment, name: {name}}}\n    patch: '- {patch}'"


def main() -> int:
    """Read, judge, tell; the exit status."""
    found = list(faults(yaml.safe_load_all(sys.stdin)))
    for fault in found:
        print(fault, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
