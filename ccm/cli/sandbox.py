"""`kube-ccm sandbox`: declares the arguments, and validates them before the sandbox starts."""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
from collections.abc import Callable, Mapping
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from ccm import sandbox as settings
from ccm.base import parsing
from ccm.base.parsing import parse_digits
from ccm.cli import command

ASSETS_VARIABLE = "KUBEBUILDER_ASSETS"
"""Environment variable with the folder of kube-apiserver and etcd, as in kubebuilder."""

_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NODE_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_NAME_LENGTH = 253

_SUMMARY = "run the daemon locally with an API server, a simulated cloud and simulated kubelets"

_DESCRIPTION = """\
Runs a small simulated cluster on loopback:

  1. an API server: the kube-apiserver and etcd in the folder that the variable
     KUBEBUILDER_ASSETS names, else the built-in one (kubectl works with both)
  2. a simulated cloud with one instance for each node
  3. the daemon
  4. simulated kubelets: each registers its node, tainted as uninitialized

The daemon finds the instance of each node, sets the node's provider ID, labels and
addresses, removes the taint, and creates a route to the node's Pods in the cloud. With
--machines it also creates VMs for the Machines of a MachineDeployment, and their kubelets
join; scale the MachineDeployment, or change its template, to see a rollout. --machine-api
selects Gardener's or Kubermatic's API. When all nodes are initialised, the sandbox creates
Services of type LoadBalancer, and the daemon creates a load balancer with all nodes for
each. A terminal shows a live table; other outputs get lines of text. Ctrl-C stops and
removes everything.

Meanwhile, in another terminal, export the printed KUBECONFIG and use kubectl, for example to
create a Service. The commands below power off or delete the machine of a node.
"""

_EPILOG = """\
examples:
  kube-ccm sandbox                               5 nodes, until Ctrl-C
  kube-ccm sandbox --nodes 500 --latency 50ms    larger cluster, slower cloud
  kube-ccm sandbox --machines 3                  also 3 Machines with VMs and nodes
  kube-ccm sandbox --machines 3 --machine-api kubermatic
                                                 the same with Machines of cluster.k8s.io
  kube-ccm sandbox --once                        exit with 0 after convergence
  kube-ccm sandbox --provider stackit --machines 3
                                                 a fake of the cloud of that provider
  kube-ccm sandbox --cloud-provider acme --cloud-config acme.yaml --node-names vm-1,vm-2
                                                 your own provider, with nodes of your cloud
while a sandbox runs:
  kube-ccm sandbox poweroff node-0001            also poweron, delete, add
"""

_ACTIONS = {
    "poweroff": "power off the machine of a node: the node gets the shutdown taint",
    "poweron": "power on the machine of a node: the node loses the shutdown taint",
    "delete": "delete the machine of a node: the node is deleted after two checks of the cloud",
    "add": "add a machine: its kubelet registers a node of that name",
}


def add(commands: Any) -> None:
    """Register the subcommand."""
    usage = "kube-ccm sandbox [OPTION...]\n       kube-ccm sandbox ACT NODE [--folder FOLDER]"
    parser = command.add_parser(
        commands, "sandbox", _SUMMARY, usage=usage, description=_DESCRIPTION, epilog=_EPILOG
    )
    parser.set_defaults(run=lambda options: _run(parser, options))
    option = parser.add_argument_group("objects").add_argument
    option(
        "--nodes",
        type=partial(_number, least=1, most=settings.MAX_NODES),
        metavar="N",
        help=(
            f"number of nodes to register, named node-0001 etc. (default {settings.DEFAULT_NODES})"
        ),
    )
    option(
        "--node-names",
        type=_names,
        metavar="A,B,C",
        help="register nodes with these names instead of --nodes",
    )
    option(
        "--services",
        type=partial(_number, least=0, most=settings.MAX_SERVICES),
        metavar="N",
        help="number of Services of type LoadBalancer to create, named web-1 etc. "
        f"(default {settings.DEFAULT_SERVICES}; 0 in a real cloud, where they may cost money)",
    )
    option(
        "--machines",
        type=partial(_number, least=0, most=settings.MAX_MACHINES),
        metavar="N",
        default=0,
        help="create a MachineDeployment with this many Machines; the daemon creates their VMs, "
        "which join as additional nodes (default 0)",
    )
    option(
        "--machine-api",
        choices=settings.MACHINE_APIS,
        help="with --machines: API of the Machines (default gardener, machine.sapcloud.io). "
        "kubermatic is cluster.k8s.io, in the namespace kube-system; the sandbox then also writes "
        "the user data that the operating-system-manager writes in a real cluster",
    )
    option(
        "--machine-class",
        type=Path,
        metavar="FILE",
        help="with --machines and --cloud-config: YAML file with the MachineClass, or for "
        "--machine-api kubermatic the MachineDeployment, and its Secrets; VMs are created in your "
        "cloud, and deleted on exit",
    )
    option = parser.add_argument_group("cloud").add_argument
    option(
        "--latency",
        type=_duration,
        metavar="DURATION",
        help="duration of each call to the simulated cloud, such as 50ms (default 0s)",
    )
    option(
        "--cloud-provider",
        "--provider",
        dest="provider",
        metavar="NAME",
        help="use this installed provider instead of the simulated cloud; a node then counts as "
        "initialised when it has a provider ID and no taint. Without --cloud-config, providers "
        "with a fake of their cloud (hcloud, openstack, stackit) use the fake, also for machines",
    )
    option(
        "--cloud-config",
        "--provider-config",
        dest="provider_config",
        type=Path,
        metavar="FILE",
        help="with --cloud-provider: cloud config of your own cloud (/dev/null: all settings come "
        "from the environment)",
    )
    option(
        "--routes",
        action="store_true",
        help="with --cloud-provider: give nodes Pod ranges, and let the daemon create routes to "
        "them in your cloud; the routes are not deleted on exit",
    )
    option = parser.add_argument_group("run").add_argument
    option(
        "--once",
        action="store_true",
        help="exit when all Machines run, all nodes are initialised and have routes, and all "
        "Services have load balancers: exit status 0, or 1 after --timeout",
    )
    option(
        "--timeout",
        type=_duration,
        metavar="DURATION",
        help=f"time limit of --once (default {settings.TIMEOUT_S:.0f}s)",
    )
    option("--keep", action="store_true", help="keep the folder with logs and kubeconfig on exit")
    option(
        "--picture",
        type=Path,
        metavar="FILE",
        help="write the final table to this SVG file (needs the extra cli)",
    )
    _add_actions(parser)


def _add_actions(parser: argparse.ArgumentParser) -> None:
    acts = parser.add_subparsers(
        title="while a sandbox runs", metavar="ACT", prog="kube-ccm sandbox"
    )
    for name, text in _ACTIONS.items():
        act = acts.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        act.set_defaults(run=partial(_run_action, name))
        help_text = "name in `kubectl get nodes`"
        act.add_argument("node", type=_node_name, metavar="NODE", help=help_text)
        act.add_argument(
            "--folder",
            type=Path,
            metavar="FOLDER",
            help="sandbox folder, if several sandboxes run (default: the folder of $KUBECONFIG, or "
            "of the only sandbox)",
        )


def _run_action(name: str, options: argparse.Namespace) -> int:
    """Run an action, such as `poweroff`, in a running sandbox; return the exit status."""
    import asyncio

    from ccm.sandbox import cloud

    try:
        running = cloud.find_sandbox(options.folder, os.environ.get("KUBECONFIG", ""))
        print(asyncio.run(cloud.run_action(name, options.node, running)))
    except (cloud.ActionError, cloud.AdminError) as error:
        whose = "the simulated cloud: " if isinstance(error, cloud.AdminError) else ""
        print(f"kube-ccm sandbox {name}: {whose}{error}", file=sys.stderr)
        return 1
    return 0


def _run(parser: argparse.ArgumentParser, options: argparse.Namespace) -> int:
    wanted = read(options, parser.error)
    from ccm.sandbox import main

    return main.run(wanted, out=sys.stdout)


def read(
    options: argparse.Namespace, refuse: Callable[[str], NoReturn]
) -> settings.SandboxSettings:
    """Convert parsed arguments to settings.

    Args:
        options: the parsed arguments.
        refuse: called with a message about invalid arguments; does not return.
    """
    if options.nodes is not None and options.node_names is not None:
        refuse("--nodes and --node-names exclude each other")
    if options.timeout is not None and not options.once:
        refuse("--timeout needs --once")
    if options.machine_api is not None and not options.machines:
        refuse("--machine-api needs --machines")
    provider = _read_provider(options, refuse)
    # With Machines in a real cloud, no nodes are simulated by default.
    is_own = provider is not None and not provider.fake
    count = options.nodes or (0 if options.machines and is_own else settings.DEFAULT_NODES)
    names = options.node_names or tuple(f"node-{number:04d}" for number in range(1, count + 1))
    timeout_s = settings.TIMEOUT_S if options.timeout is None else options.timeout.total_seconds()
    services = 0 if is_own else settings.DEFAULT_SERVICES
    return settings.SandboxSettings(
        node_names=names,
        services=services if options.services is None else options.services,
        machines=options.machines,
        machine_api=options.machine_api or settings.GARDENER,
        latency=options.latency or timedelta(0),
        once=options.once,
        timeout_s=timeout_s,
        provider=provider,
        keep=options.keep,
        picture=_picture(options.picture, refuse),
        assets=_read_assets(refuse),
    )


def _read_assets(refuse: Callable[[str], NoReturn]) -> Path | None:
    from ccm.sandbox import realserver

    if not (given := os.environ.get(ASSETS_VARIABLE)):
        return None
    assets = Path(given).absolute()
    if missing := realserver.missing_binaries(assets):
        refuse(
            f"{ASSETS_VARIABLE}={given}: {' and '.join(missing)} missing; set it to a folder with "
            "both, or unset it for the built-in API server"
        )
    return assets


def _read_provider(
    options: argparse.Namespace, refuse: Callable[[str], NoReturn]
) -> settings.SandboxProvider | None:
    file: Path | None = options.provider_config
    if options.provider is None:
        for flag, given in (
            ("--cloud-config", file),
            ("--routes", options.routes),
            ("--machine-class", options.machine_class),
        ):
            if given:
                refuse(f"{flag} needs --cloud-provider")
        return None
    if options.latency is not None:
        refuse("--latency needs the simulated cloud; it cannot be used with --cloud-provider")
    from ccm.cloud import registry
    from ccm.sandbox import cluster

    try:
        opener = registry.load_provider(options.provider)
    except registry.ProviderError as error:
        refuse(f"--cloud-provider: {error}")
    offers = registry.declaration_of(opener).offers
    fake = cluster.fake_module(opener) if file is None else ""
    if options.routes and offers is not None and "routes" not in offers:
        refuse(f"--routes: provider {options.provider} has no routes")
    if options.machines and offers is not None and "machines" not in offers:
        refuse(f"--machines: provider {options.provider} has no machines")
    if file is not None and not os.access(file, os.R_OK):
        refuse(f"--cloud-config: {file} does not exist or cannot be read")
    return settings.SandboxProvider(
        name=options.provider,
        config=file and file.absolute(),
        routes=options.routes,
        instances=offers is None or bool({"instances", "instances_v1"}.intersection(offers)),
        machine_objects=_read_machine_objects(options, refuse, is_made=bool(fake)),
        fake=fake,
    )


def _read_machine_objects(
    options: argparse.Namespace, refuse: Callable[[str], NoReturn], *, is_made: bool
) -> tuple[Mapping[str, Any], ...]:
    """Return the objects in the file of `--machine-class`; empty without the flag.

    `is_made`: whether a fake of the cloud provides the objects, so that the flag may be missing.
    """
    file: Path | None = options.machine_class
    is_enough = is_made and file is None
    if not is_enough and (file is None) == bool(options.machines):
        refuse("with --cloud-provider, give both --machines and --machine-class, or neither")
    if file is None:
        return ()
    from ccm.sandbox import machineapis, machines

    api = machineapis.APIS[options.machine_api or settings.GARDENER]
    try:
        return machines.read_objects(api, file.read_bytes())
    except OSError:
        refuse(f"--machine-class: {file} does not exist or cannot be read")
    except ValueError as error:
        refuse(f"--machine-class: {file}: {error}")


def _picture(file: Path | None, refuse: Callable[[str], NoReturn]) -> Path | None:
    if file is None:
        return None
    if importlib.util.find_spec("rich") is None:
        refuse("--picture needs the extra cli; install it: pip install 'kube-ccm[cli]'")
    if file.is_dir() or not os.access(file.absolute().parent, os.W_OK):
        refuse(f"--picture: {file} cannot be written; name a file in an existing folder")
    return file.absolute()


def _number(text: str, *, least: int, most: int) -> int:
    number = parse_digits(text, maximum=most)
    if number is None or number < least:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from {least} to {most}")
    return number


def _duration(text: str) -> timedelta:
    try:
        value = parsing.parse_duration(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error
    if value < timedelta(0):
        raise argparse.ArgumentTypeError(f"{text} is negative")
    return value


def _names(text: str) -> tuple[str, ...]:
    names = tuple(_node_name(name.strip()) for name in text.split(","))
    for name in names:
        if names.count(name) > 1:
            raise argparse.ArgumentTypeError(f"{name} is given twice")
    return names


def _node_name(text: str) -> str:
    if len(text) > _NAME_LENGTH or not _NODE_NAME.fullmatch(text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a valid node name; use lower-case letters, digits, '-' and '.'"
        )
    return text
