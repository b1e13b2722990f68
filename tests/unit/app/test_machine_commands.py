"""The commands for machines: command lines of the Go programs, settings, and their port."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
from collections.abc import AsyncIterator, Mapping

import aiohttp
import pytest

from ccm.app import clients
from ccm.app.health import DaemonState
from ccm.app.http import ServerContext
from ccm.app.machines.commands import (
    COMMANDS,
    MACHINE_CONTROLLER,
    MACHINE_CONTROLLER_MANAGER,
    CommandOptions,
    MachineCommand,
)
from ccm.app.machines.serving import serving
from ccm.app.options import argv
from ccm.app.provider import Misconfigured
from ccm.kube.config import ClusterConfig
from ccm.kube.credentials import StaticCredentials, TlsSettings
from ccm.kube.transport import Transport
from ccm.sandbox import process

CLOUD = "--cloud-provider=sim"

BOTH = """
address 0.0.0.0 | cloud-provider | target-kubeconfig | control-kubeconfig | namespace default
kube-api-qps 20 | kube-api-burst 30
min-resync-period 12h0m0s | controller-start-interval 0s
leader-elect true | leader-elect-lease-duration 15s
leader-elect-renew-deadline 10s | leader-elect-retry-period 2s | leader-elect-resource-lock leases
v 0 | vmodule
"""
CONTROLLER = """
port 10259 | concurrent-syncs 50 | machine-creation-timeout 20m0s | machine-health-timeout 10m0s
machine-drain-timeout 2h0m0s | machine-inplace-update-timeout 20m0s
machine-max-evict-retries 360 | machine-pv-detach-timeout 2m0s
machine-pv-reattach-timeout 1m30s | machine-safety-apiserver-statuscheck-timeout 30s
machine-safety-apiserver-statuscheck-period 1m0s | machine-safety-orphan-vms-period 15m0s
machine-preserve-timeout 96h0m0s | bootstrap-token-auth-extra-groups
resource-exhausted-retry 10m0s
node-conditions [KernelDeadlock,ReadonlyFilesystem,DiskPressure,NetworkUnavailable]
"""
MANAGER = """
port 10258 | concurrent-syncs 10 | safety-up 2 | safety-down 1
machine-safety-overshooting-period 1m0s | autoscaler-scaledown-annotation-during-rollout true
"""


def rows(*tables: str) -> list[tuple[str, str]]:
    """Flags of the Go programs with their defaults."""
    cells = [cell.split() for table in tables for cell in re.split(r"[|\n]", table) if cell.strip()]
    return [(name, "".join(default)) for name, *default in cells]


def read(*words: str, command: MachineCommand = MACHINE_CONTROLLER) -> CommandOptions:
    found = command.read([CLOUD, *words] if command.has_cloud else words)
    assert isinstance(found, CommandOptions)
    return found


def faults(*words: str, command: MachineCommand = MACHINE_CONTROLLER) -> list[str]:
    try:
        command.read(words)
    except argv.UsageError as error:
        return list(error.faults)
    return []


@pytest.mark.row("machine-command-01")
@pytest.mark.parametrize(
    ("command", "tables"),
    [(MACHINE_CONTROLLER, (BOTH, CONTROLLER)), (MACHINE_CONTROLLER_MANAGER, (BOTH, MANAGER))],
    ids=COMMANDS,
)
def test_flags_of_the_go_command_keep_their_defaults(
    command: MachineCommand, tables: tuple[str, ...]
) -> None:
    for name, default in rows(*tables):
        if name in command.no_effect and name not in command.flags:
            continue  # as `cloud-provider` of the command that makes no VMs
        flag = command.flags[name]
        assert (name, flag.kind.write(flag.default)) == (name, default)
    spelt = [f"--{name}={default}" for name, default in rows(*tables) if default[:1] != "["]
    read(*(word for word in spelt if "cloud-provider" not in word), command=command)


@pytest.mark.row("machine-command-01")
def test_flags_without_effect_are_accepted_with_a_notice() -> None:
    words = ("--logtostderr", "--safety-up=3", "--profiling", "--log-dir", "x")
    options = read("--concurrent-syncs=7", *words)

    (notice,) = options.notices()
    assert re.findall(r"--([\w-]+)", notice) == ["logtostderr", "safety-up", "profiling", "log-dir"]
    assert 'FLAG: --concurrent-syncs="7"' in options.flag_lines()


@pytest.mark.row("machine-command-02", "machine-cluster-03")
@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("--port=0", "--port=0: must be from 1 to 65535"),
        ("--port=65536", "--port=65536: must be from 1 to 65535"),
        ("--address=here", 'invalid argument "here" for --address'),
        ("--concurrent-syncs=0", "--concurrent-syncs=0: must be 1 or more"),
        ("--kube-api-qps=0", "--kube-api-qps=0: must be above 0"),
        ("--kube-api-burst=-1", "--kube-api-burst=-1: must be 0"),
        ("--machine-drain-timeout=-1s", "--machine-drain-timeout=-1s: must be 0s or longer"),
        ("--machine-max-evict-retries=-1", "--machine-max-evict-retries=-1: must"),
        ("--machine-safety-orphan-vms-period=30", "expected a duration such as"),
        (
            "--machine-safety-apiserver-statuscheck-period=29s",
            "--machine-safety-apiserver-statuscheck-period=29s: ",
        ),
        ("--target-kubeconfig=none", "--control-kubeconfig=: is required with --target-kubeconfig"),
        ("--control-kubeconfig=none", "must name the cluster"),
        ("--leader-elect-resource-lock=endpoints", 'must be "leases"'),
        ("--leader-elect-renew-deadline=15s", "--leader-elect-lease-duration=15s: must be longer"),
        ("--namespace=", "--namespace=: must not be empty"),
        ("--cluster-id=no/label", "must be a valid label value"),
        ("machines", '"machine-controller" does not take any arguments, got ["machines"]'),
        ("--cluster-cidr=10.0.0.0/8", "unknown flag: --cluster-cidr"),
    ],
)
def test_invalid_machine_flags_are_refused(words: str, fault: str) -> None:
    (said,) = faults(CLOUD, words)

    assert fault in said


def test_all_errors_are_reported_together_including_a_missing_provider() -> None:
    said = faults("--port=0", "--concurrent-syncs=0")

    assert [one.partition("=")[0].partition(" ")[0] for one in said] == [
        "--concurrent-syncs",
        "--port",
        "--cloud-provider",
    ]
    assert said[-1] == "--cloud-provider is required; installed: hcloud, openstack, sim, stackit"
    assert faults(command=MACHINE_CONTROLLER_MANAGER) == []


@pytest.mark.row("machine-cluster-02")
@pytest.mark.parametrize(
    ("words", "own", "others"),
    [
        ("", "", {}),
        ("--target-kubeconfig=t", "t", {}),
        ("--control-kubeconfig=c", "c", {"target": "inClusterConfig"}),
        ("--control-kubeconfig=c --target-kubeconfig=t", "c", {"target": "t"}),
        ("--control-kubeconfig=c --target-kubeconfig=c", "c", {}),
        ("--control-kubeconfig=inClusterConfig --target-kubeconfig=t", "", {"target": "t"}),
        ("--control-kubeconfig=inClusterConfig", "", {}),
        ("--control-kubeconfig=c --target-kubeconfig=none", "c", {}),
    ],
)
def test_control_and_target_kubeconfig_flags_select_the_clusters(
    words: str, own: str, others: Mapping[str, str]
) -> None:
    """The own cluster has the Lease and the Machines; nodes join the target cluster."""
    options = read(*words.split())

    assert options.kubeconfig == own
    assert clients.remote_kubeconfigs(options) == others


@pytest.mark.row("machine-command-03")
def test_lease_name_is_that_of_the_go_command_in_the_machine_namespace() -> None:
    for command in COMMANDS.values():
        options = read("--namespace=shoot", command=command)
        assert options.leader_elect_resource_name == options.program == command.name
        assert options.leader_elect_resource_namespace == "shoot"
    other = read("--leader-elect-resource-name=l", "--leader-elect-resource-namespace=n")
    assert (other.leader_elect_resource_name, other.leader_elect_resource_namespace) == ("l", "n")


@pytest.mark.row("kubermatic-lease-05")
@pytest.mark.parametrize(
    ("words", "warned"),
    [
        ("", False),
        ("--namespace=kube-system", True),
        ("--namespace=kube-system --leader-elect=false", False),
        ("--namespace=kube-system --leader-elect-resource-name=gardener", False),
        ("--leader-elect-resource-namespace=kube-system", True),
    ],
)
def test_lease_of_kubermatics_program_causes_a_warning(words: str, warned: bool) -> None:
    options = read(*words.split())

    assert len(options.warnings()) == int(warned)
    assert all("--leader-elect-resource-name" in text for text in options.warnings())


@pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS)
def test_help_shows_supported_flags_and_version_names_the_command(command: MachineCommand) -> None:
    told, version = command.read(["--help"]), command.read(["--version"])

    assert isinstance(told, str)
    assert f"Usage: {command.name}" in told
    assert "\n      --control-kubeconfig string\n" in told
    assert "logtostderr" not in told
    assert max(map(len, told.splitlines())) <= 100
    assert str(version).startswith(f"{command.name} ")


NOWHERE = ClusterConfig(
    server="http://127.0.0.1:1", credentials=StaticCredentials(), tls=TlsSettings()
)


@contextlib.asynccontextmanager
async def running(*flags: str, port: int = 0) -> AsyncIterator[tuple[DaemonState, str]]:
    """Serve the port of these flags without a cluster; yield the state and the URL."""
    port, vitals = port or process.pick_port(), DaemonState()
    given = ["--cloud-provider=sim", f"--address={process.LOOPBACK}", f"--port={port}", *flags]
    options = MACHINE_CONTROLLER.read(given)
    assert isinstance(options, CommandOptions)
    async with Transport(NOWHERE) as wire, Transport(NOWHERE) as other:
        context = ServerContext(
            options=options, vitals=vitals, transport=wire, environ={}, others={"target": other}
        )
        async with serving(context) as served:
            yield vitals, f"http://{process.LOOPBACK}:{port}"
            assert not served.done()


async def asked(url: str, method: str = "GET") -> tuple[int, str]:
    # Unneeded credentials must not cause a refusal.
    headers = {"Authorization": "Bearer x"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.request(method, url) as answer,
    ):
        return answer.status, await answer.text()


@pytest.mark.row("machine-command-04")
async def test_healthz_fails_while_the_daemon_stops_and_livez_does_not() -> None:
    async with running() as (vitals, url):
        assert await asked(f"{url}/healthz") == (200, "OK")
        vitals.stopping = lambda: True
        assert await asked(f"{url}/healthz") == (500, "Unhealthy")
        assert (await asked(f"{url}/livez"))[0] == 200


@pytest.mark.row("machine-command-04")
async def test_healthz_and_livez_fail_after_event_loop_lag() -> None:
    async with running() as (vitals, url):
        vitals.late_beats = 100
        assert await asked(f"{url}/healthz") == (500, "Unhealthy")
        assert "[-]event-loop failed" in (await asked(f"{url}/livez"))[1]


@pytest.mark.row("machine-command-04")
async def test_configz_and_metrics_are_public_and_read_only() -> None:
    async with running("--machine-creation-timeout=3m") as (_, url):
        told = json.loads((await asked(f"{url}/configz"))[1])["componentconfig"]
        assert (told["machine-creation-timeout"], told["port"]) == ("3m0s", url.rpartition(":")[2])
        assert "mcm_machine_items_total" in (await asked(f"{url}/metrics"))[1]
        refused = [await asked(f"{url}/metrics/slis", method) for method in ("DELETE", "POST")]
        assert [status for status, _ in refused] == [405, 405]
        for path in ("/explain", "/debug/pprof/"):
            assert (await asked(f"{url}{path}"))[0] == 404


async def test_taken_port_error_names_the_flag() -> None:
    port = process.pick_port()
    async with running(port=port):
        with pytest.raises(Misconfigured, match=f"--port={port}: cannot listen on"):
            async with running(port=port):
                await asyncio.sleep(0)
