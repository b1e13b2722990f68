"""What a person can do while a sandbox runs: lines for another terminal, each as it is typed there.

Pure but for this process's own place: where its commands lie, and whether kubectl is there.
"""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType

from ccm.sandbox import kubelet, ports
from ccm.sandbox.settings import Provider

_NEW = "one-more"


def commands(
    *,
    kubeconfig: Path,
    provider: Provider,
    routes: bool,
    node: str,
    port: int,
    simulated: bool,
    machine: str = "",
    deployment: str = "",
    other_class: str = "",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[str]:
    """Command lines, each indented; they hold from the first to the last.

    Args:
        kubeconfig: of the sandbox's API server.
        provider: the daemon's.
        routes: whether there are routes.
        node: one of the nodes.
        port: of the daemon's HTTPS server.
        simulated: whether it is of the simulated cloud.
        machine: namespace and name of one of the Machines; empty: there are none.
        deployment: name of their MachineDeployment.
        other_class: name of a MachineClass that it could be rolled to; empty: there is none.
        variables: what the environment has to say of the cloud.
    """
    yield f"  export KUBECONFIG={shlex.quote(str(kubeconfig))}"
    if sys.prefix != sys.base_prefix:  # an environment, which that terminal may not know
        yield f"  export PATH={shlex.quote(str(Path(sys.prefix) / 'bin'))}:$PATH"
    if shutil.which("kubectl"):
        yield "  kubectl get nodes -o wide"
        yield "  kubectl create service loadbalancer web --tcp=80"
        if machine:
            yield "  kubectl get machinedeployments,machinesets,machines"
    daemon = f"--address={ports.LOOPBACK}:{port} --insecure"
    if machine:
        yield f"  kube-ccm explain machine {machine} {daemon}"
        yield from _rolling(deployment, other_class)
        namespace = machine.partition("/")[0]
        yield f"  kube-ccm explain machinedeployment {namespace}/{deployment} {daemon}"
    if simulated:
        yield f"  kube-ccm sandbox poweroff {node}"
        yield f"  kube-ccm sandbox delete {node}"
        yield f"  kube-ccm sandbox add {_NEW}"
    yield f"  kube-ccm explain node {node} {daemon}"
    for name, text in variables.items():
        yield f"  export {name}={shlex.quote(text)}"
    yield from _doctor(provider.name, provider.config, routes)


def _rolling(deployment: str, other_class: str) -> Iterator[str]:
    """More machines, and then all of another class."""
    if shutil.which("kubectl"):
        yield f"  kubectl scale machinedeployment {deployment} --replicas=4"
        if other_class:
            changed = {"spec": {"template": {"spec": {"class": {"name": other_class}}}}}
            patch = json.dumps(changed, separators=(",", ":"))
            yield f"  kubectl patch machinedeployment {deployment} --type=merge -p '{patch}'"
    yield f"  kube-ccm rollout status machinedeployment/{deployment}"


def _doctor(provider: str, config: Path | None, routes: bool) -> Iterator[str]:
    words = [f"--cloud-provider={provider}"]
    words += (
        [f"--cluster-cidr={kubelet.POD_RANGE}"] if routes else ["--configure-cloud-routes=false"]
    )
    first = f"  kube-ccm doctor {' '.join(words)}"
    if config is None:
        yield first
        return
    yield f"{first} \\"
    yield f"    --cloud-config={shlex.quote(str(config))}"
