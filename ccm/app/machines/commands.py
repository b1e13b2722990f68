"""The two machine commands: controllers, flags, and translation of flags to daemon settings.

The flags of a command are those of its controllers, the `SHARED` flags of the daemon, and
`CommandFlags`. Names and defaults are the same as in Gardener's machine-controller-manager, so that
command lines for it work unchanged.
"""
# ruff: noqa: RUF009 - `FlagSection.flag` is `dataclasses.field` with the table's columns

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from ipaddress import IPv4Address
from types import MappingProxyType
from typing import Any

import ccm
from ccm.app.machines.serving import serving
from ccm.app.main import Program
from ccm.app.options import FLAGS, SECTIONS, Options, argv, generic
from ccm.app.options.controllers import ALIASES, FLAGS_OF, MANIFESTS
from ccm.app.options.table import REQUIRED, arguments_fault, fields
from ccm.base.flags import (
    ADDRESS,
    INT,
    Address,
    Flag,
    FlagSection,
    FlagViolation,
    at_least_one,
    flags_of,
    missing,
)
from ccm.kubermatic.names import LEASE
from ccm.machines.flags import IN_CLUSTER, NO_TARGET, check_control_kubeconfig
from ccm.runtime.manifest import GENERIC

CLUSTERS = FlagSection("clusters")
SERVING = FlagSection("serving")
WORK = FlagSection("work")

SHARED = (
    *("namespace", "cloud-config", "cluster-name", "allow-untagged-cloud"),
    *("cloud-call-timeout", "cloud-api-qps", "cloud-api-burst", "kube-api-burst"),
    *("min-resync-period", "controller-start-interval", "shutdown-grace-period"),
    *("leader-elect", "leader-elect-lease-duration", "leader-elect-renew-deadline"),
    *("leader-elect-retry-period", "leader-elect-resource-lock"),
    *("logging-format", "log-flush-frequency", "v", "vmodule", "help", "help-all", "version"),
)
"""Flags of the daemon that both commands have, with the same meaning and default."""

NO_EFFECT: Mapping[str, bool] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("logtostderr", "alsologtostderr", "one-output", "add-dir-header"),
                *("skip-headers", "skip-log-headers", "profiling", "contention-profiling"),
            ),
            False,
        ),
        **dict.fromkeys(
            (
                *("stderrthreshold", "log-dir", "log-file", "log-file-max-size"),
                *("log-backtrace-at", "kube-api-content-type"),
            ),
            True,
        ),
    }
)
"""Flags of the Go programs that have no effect here -> whether they take a value.

`MachineCommand.no_effect` adds more.
"""

_VM_CONTROLLERS = ("machineclass", "machine", "machinesafety")
_SET_CONTROLLERS = ("machineset", "machinedeployment", "machineovershoot")
"""Aliases of the controllers of machine-controller and of machine-controller-manager."""

_SYNCS = "concurrent-syncs"
"""Flag for the number of workers; the daemon's flags for single controllers have this suffix."""

_HIGHEST_PORT = 65535


@dataclass(frozen=True, kw_only=True)
class CommandFlags:
    """Flags of both commands that the daemon lacks, or has with another default or meaning."""

    control_kubeconfig: str = CLUSTERS.flag(
        "",
        "kubeconfig of the cluster that has the Machines, MachineClasses, their Secrets and the "
        f"Lease. {IN_CLUSTER} means the in-cluster configuration. Empty means the value of "
        "--target-kubeconfig.",
        check=check_control_kubeconfig,
    )
    target_kubeconfig: str = CLUSTERS.flag(
        "",
        "kubeconfig of the cluster that machines join, with their Nodes and bootstrap tokens. "
        f"{NO_TARGET} means no such cluster: VMs are created without Nodes. Empty means the "
        "in-cluster configuration.",
    )
    address: Address = SERVING.flag(
        IPv4Address("0.0.0.0"),  # noqa: S104 - the reference's default
        "Address of health checks and metrics, without TLS and authentication. 127.0.0.1 limits "
        "access to this host; 0.0.0.0 or :: means every interface.",
        kind=ADDRESS,
    )
    port: int = SERVING.flag(
        10259,
        "Port of /healthz, /livez, /readyz, /metrics and /configz.",
        unit="port",
        check=lambda value: (
            "" if 1 <= value <= _HIGHEST_PORT else f"must be from 1 to {_HIGHEST_PORT}"
        ),
        kind=INT,
    )
    concurrent_syncs: int = WORK.flag(
        50,
        "Number of objects of each kind reconciled concurrently, not counting those that wait for "
        "the cloud.",
        unit="objects",
        check=at_least_one,
    )
    cloud_provider: str = WORK.flag(
        "", "Registered name of the provider that creates the VMs. Required."
    )
    kube_api_qps: float = WORK.flag(
        20.0,
        "Rate limit of each client's requests to the API server. If neither this flag nor "
        "--kube-api-burst is set, the limit ends once a response shows that the server has API "
        "Priority and Fairness.",
        unit="requests per second",
        check=lambda value: "" if 0 < value < float("inf") else "must be above 0",
    )
    leader_elect_resource_name: str = GENERIC.flag(
        "", "Name of the lease. Empty means the command's name, as in the Go program."
    )
    leader_elect_resource_namespace: str = GENERIC.flag(
        "", "Namespace of the lease, in the control cluster. Empty means the value of --namespace."
    )


@dataclass(frozen=True, kw_only=True)
class CommandOptions(CommandFlags, Options):
    """The daemon's settings, derived from the flags of one command.

    Attributes:
        command_flags: flags of the command, by name.
    """

    command_flags: Mapping[str, Flag] = field(default_factory=dict)

    def warnings(self) -> list[str]:
        """Return a message if programs for another API group use the same Lease."""
        own = f"{self.leader_elect_resource_namespace}/{self.leader_elect_resource_name}"
        if not self.leader_elect or own != f"kube-system/{LEASE}":
            return []
        text = (
            f"the Lease {own} is also that of Kubermatic's machine-controller and of daemons with "
            "Kubermatic's controllers; while this command holds it, those controllers do not run; "
            "if this cluster has one of these programs, set --leader-elect-resource-name of this "
            "command"
        )
        return [text]

    def written(self) -> dict[str, str]:
        """Return each flag's value as text, by name."""
        return {name: flag.kind.write(self.get(name)) for name, flag in self.command_flags.items()}


@dataclass(frozen=True, kw_only=True)
class MachineCommand:
    """A machine command.

    Attributes:
        name: name of the command; also the default name of the lease.
        introduction: first lines of the command's help.
        aliases: aliases of the command's controllers; unknown aliases are ignored.
        defaults: defaults that differ from those of the daemon or of `CommandFlags`, by flag name.
        has_cloud: whether the command creates VMs, and so needs a provider.
    """

    name: str
    introduction: str
    aliases: Sequence[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_cloud: bool = True

    @property
    def controllers(self) -> tuple[str, ...]:
        """Canonical names of the command's controllers."""
        return tuple(ALIASES[alias] for alias in self.aliases if alias in ALIASES)

    @property
    def program(self) -> Program:
        """Program that runs this command."""
        return Program(name=self.name, read=self.read, serve=serving)

    @cached_property
    def flags(self) -> Mapping[str, Flag]:
        """Flags of the command, sorted by name."""
        names = [*_controller_flags(self.aliases), *SHARED]
        flags = {name: FLAGS[name] for name in names if not name.endswith(f"-{_SYNCS}")}
        flags |= flags_of(CommandFlags)
        for name, default in self.defaults.items():
            flags[name] = replace(flags[name], default=default)
        kept = {name: flags[name] for name in sorted(flags) if self.has_cloud or not _cloud(name)}
        return MappingProxyType(kept)

    @property
    def no_effect(self) -> Mapping[str, bool]:
        """Flags that have no effect -> whether they take a value.

        They include the flags of the other machine command.
        """
        others = {
            name: FLAGS[name].kind.bare_value is None
            for name in (
                *_controller_flags((*_VM_CONTROLLERS, *_SET_CONTROLLERS)),
                *filter(_cloud, SHARED),
            )
            if not name.endswith(f"-{_SYNCS}")
        }
        return {**NO_EFFECT, **others, "cloud-provider": True}

    def read(self, words: Sequence[str]) -> Options | str:
        """Return the settings of a command line, or the text of `--help` or `--version`.

        Raises:
            UsageError: the command line is invalid; lists every fault.
        """
        parsed = argv.parse(self.flags, words, self.no_effect)
        given = {name: flag.default for name, flag in self.flags.items()} | dict(parsed.values)
        if given["help"] or given["help-all"]:
            return self._help(is_full=given["help-all"])
        if given["version"] != "false":
            return f"{self.name} {ccm.__version__}\n"
        options = self._options(given, parsed)
        faults = [
            self.flags[name].error_message(given[name], right)
            for name, right in self._faults(options, given)
        ]
        if self.has_cloud and not given["cloud-provider"]:
            faults.append(missing("cloud-provider"))
        if parsed.arguments:
            faults.append(arguments_fault(self.name, parsed.arguments))
        if faults:
            raise argv.UsageError(faults)
        return options

    def _options(self, given: Mapping[str, Any], parsed: argv.ParsedArguments) -> CommandOptions:
        target = given["target-kubeconfig"] or IN_CLUSTER
        control = given["control-kubeconfig"] or target
        syncs = (name for name in _controller_flags(self.aliases) if name.endswith(f"-{_SYNCS}"))
        namespace = given["leader-elect-resource-namespace"]
        settings = {
            **given,
            **dict.fromkeys(syncs, given[_SYNCS]),
            "controllers": self.controllers,
            # The control cluster becomes the daemon's cluster, which has the Lease.
            "kubeconfig": "" if control == IN_CLUSTER else control,
            "control-kubeconfig": control,
            "target-kubeconfig": target,
            "leader-elect-resource-name": given["leader-elect-resource-name"] or self.name,
            "leader-elect-resource-namespace": namespace or given["namespace"],
            "secure-port": 0,
            # The commands have neither the flag nor the permissions.
            "journal": generic.JOURNAL_OFF,
        }
        return CommandOptions(
            **fields(settings),
            program=self.name,
            explicit=frozenset(parsed.values),
            no_effect=parsed.no_effect,
            aliases=parsed.aliases,
            command_flags=self.flags,
        )

    def _faults(self, options: CommandOptions, given: Mapping[str, Any]) -> Iterator[FlagViolation]:
        for name, flag in self.flags.items():
            if right := flag.violation(given[name]):
                yield name, right
        if given["target-kubeconfig"] == NO_TARGET and not given["control-kubeconfig"]:
            yield "control-kubeconfig", f"is required with --target-kubeconfig={NO_TARGET}"
        for manifest in MANIFESTS:
            if manifest.name in options.controllers:
                yield from manifest.faults(options)
        # Report no fault of the lease namespace if its value was derived from `--namespace`.
        implied = {"leader-elect-resource-namespace"} - options.explicit
        elections = generic.election_faults(options)
        yield from (fault for fault in elections if fault[0] not in implied)
        yield from generic.log_faults(options, alpha=False)

    def _help(self, *, is_full: bool) -> str:
        sections = (CLUSTERS, WORK, *SECTIONS[:-1], SERVING, generic.GLOBAL)
        no_effect = self.no_effect.keys() - self.flags if is_full else None
        flags = argv.explain(self.flags, sections, required=REQUIRED, no_effect=no_effect)
        needs = " --cloud-provider=NAME" if self.has_cloud else ""
        return f"{self.introduction}\nUsage: {self.name}{needs} [flags]\n\n{flags}"


def _controller_flags(aliases: Iterable[str]) -> set[str]:
    """Return the flag names of the controllers with these aliases."""
    return {name for alias in aliases if alias in FLAGS_OF for name in flags_of(FLAGS_OF[alias])}


def _cloud(name: str) -> bool:
    return name.startswith("cloud-")


MACHINE_CONTROLLER = MachineCommand(
    name="machine-controller",
    introduction="""\
Creates a VM for each Machine, lets the VM join its cluster as a Node, and deletes the VM with its
Machine. Reconciles MachineClasses, and handles VMs that belong to no Machine.
""",
    aliases=_VM_CONTROLLERS,
)
MACHINE_CONTROLLER_MANAGER = MachineCommand(
    name="machine-controller-manager",
    introduction="""\
Keeps the number of Machines that MachineSets and MachineDeployments request, and rolls out new
Machine templates within the configured limits. Needs no cloud: machine-controller creates the VMs.
""",
    aliases=_SET_CONTROLLERS,
    defaults={"port": 10258, "concurrent-syncs": 10},
    has_cloud=False,
)
COMMANDS = {command.name: command for command in (MACHINE_CONTROLLER, MACHINE_CONTROLLER_MANAGER)}
"""The machine commands by name."""
