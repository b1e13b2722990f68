"""What the two commands are: their controllers, their flags, and the settings these make.

A command has the flags of its controllers, of what it shares with the daemon, and its own. They
become settings of the daemon, which does the rest.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import ccm
from ccm.app.machines import flags
from ccm.app.machines.options import CommandOptions
from ccm.app.machines.serving import serving
from ccm.app.main import Program
from ccm.app.options import FLAGS, SECTIONS, Options, argv, command, election, logs
from ccm.app.options.controllers import ALIASES, FLAGS_OF, MANIFESTS
from ccm.app.options.table import fields
from ccm.base.flags import Fault, Flag, Section, table
from ccm.gardener.flags import IN_CLUSTER

SHARED = (
    *("namespace", "cloud-config", "cluster-name", "allow-untagged-cloud"),
    *("cloud-call-timeout", "cloud-api-qps", "cloud-api-burst"),
    *("min-resync-period", "controller-start-interval", "shutdown-grace-period"),
    *("leader-elect", "leader-elect-lease-duration", "leader-elect-renew-deadline"),
    *("leader-elect-retry-period", "leader-elect-resource-lock"),
    *("logging-format", "log-flush-frequency", "v", "vmodule", "help", "version"),
)
"""Flags of the daemon as they are."""

_SYNCS = "concurrent-syncs"
"""Behind a prefix, what the daemon calls the workers of one controller."""

_NO_CLOUD = "this command has nothing to do with a cloud"


@dataclass(frozen=True, kw_only=True)
class Command:
    """One of the two.

    Attributes:
        name: of the command, and of its lease.
        introduction: the first words of its help.
        aliases: of its controllers; one that this version has not is left out.
        defaults: of its flags, where they differ from those of the other command.
        has_cloud: whether it makes VMs.
    """

    name: str
    introduction: str
    aliases: Sequence[str]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    has_cloud: bool = True

    @property
    def controllers(self) -> tuple[str, ...]:
        """The names of its controllers."""
        return tuple(ALIASES[alias] for alias in self.aliases if alias in ALIASES)

    @property
    def program(self) -> Program:
        """What runs it."""
        return Program(name=self.name, read=self.read, serve=serving)

    @cached_property
    def flags(self) -> Mapping[str, Flag]:
        """Its flags by name, sorted."""
        theirs = [name for name in self._theirs if not name.endswith(f"-{_SYNCS}")]
        every = {**flags.ACCEPTED, **{name: FLAGS[name] for name in (*theirs, *SHARED)}}
        every |= flags.OWN
        if not self.has_cloud:
            idle = [name for name in every if name.startswith("cloud-")]
            every |= {name: replace(every[name], accepted=_NO_CLOUD) for name in idle}
        for name, default in self.defaults.items():
            every[name] = replace(every[name], default=default)
        return MappingProxyType(dict(sorted(every.items())))

    def read(self, words: Sequence[str]) -> Options | str:
        """The settings of a command line, or the text it asks for.

        Raises:
            UsageError: the words cannot be used; every fault is named.
        """
        parsed = argv.parse(self.flags, words)
        given = {name: parsed.values.get(name, flag.default) for name, flag in self.flags.items()}
        if given["help"]:
            return f"{self._usage()}\n{command.explain(self.flags, _sections(self.flags.values()))}"
        if given["version"] != "false":
            return f"{self.name} {ccm.__version__}\n"
        options = self._options(given, frozenset(parsed.values))
        found = [self.flags[name].fault(given[name], right) for name, right in _faults(options)]
        if self.has_cloud and not given["cloud-provider"]:
            found.append("--cloud-provider cannot be empty; give the name of an installed provider")
        if parsed.arguments:
            said = " ".join(map(argv.quote, parsed.arguments))
            found.append(f'"{self.name}" does not take any arguments, got [{said}]')
        if found:
            raise argv.UsageError(found)
        return options

    @property
    def _theirs(self) -> Iterable[str]:
        """The flags of its controllers."""
        known = [FLAGS_OF[alias] for alias in self.aliases if alias in FLAGS_OF]
        return {name for each in known for name in table(each)}

    def _options(self, given: Mapping[str, Any], explicit: frozenset[str]) -> CommandOptions:
        target = given["target-kubeconfig"] or IN_CLUSTER
        control = given["control-kubeconfig"] or target
        taken = {name: value for name, value in given.items() if name in FLAGS}
        taken |= {name: given[_SYNCS] for name in self._theirs if name.endswith(f"-{_SYNCS}")}
        lease = given["leader-elect-resource-name"]
        namespace = given["leader-elect-resource-namespace"]
        taken |= {
            "controllers": self.controllers,
            # Our own cluster is the one that has the Lease.
            "kubeconfig": "" if control == IN_CLUSTER else control,
            "control-kubeconfig": control,
            "target-kubeconfig": target,
            "leader-elect-resource-name": lease or self.name,
            "leader-elect-resource-namespace": namespace or given["namespace"],
            "secure-port": 0,
        }
        if not self.has_cloud:
            taken |= {"cloud-provider": "", "cloud-config": ""}
        settings = fields(taken)
        return CommandOptions(
            **settings, program=self.name, explicit=explicit, by_flag=given, known=self.flags
        )

    def _usage(self) -> str:
        needs = " --cloud-provider=NAME" if self.has_cloud else ""
        return f"{self.introduction}\nUsage: {self.name}{needs} [flags]\n"


def _faults(options: CommandOptions) -> Iterator[Fault]:
    for name, flag in options.known.items():
        if right := flag.wrong(options.by_flag[name]):
            yield name, right
    yield from flags.faults(options.by_flag)
    for manifest in MANIFESTS:
        if manifest.name in options.controllers:
            yield from manifest.faults(options)
    # What follows from another flag is that one's fault.
    implied = {"leader-elect-resource-namespace"} - options.explicit
    yield from (fault for fault in election.faults(options) if fault[0] not in implied)
    yield from logs.faults(options, alpha=False)


def _sections(known: Iterable[Flag]) -> list[Section]:
    """The sections of flags in the order of help: what has to be said first, and last how."""
    used = {flag.section for flag in known}
    first, last = (flags.CLUSTERS, flags.WORK), (flags.SERVING, logs.GLOBAL)
    between = [one for one in SECTIONS if one in used and one not in last]
    return [*first, *between, *last]


MACHINE_CONTROLLER = Command(
    name="machine-controller",
    introduction="""\
Makes a VM for each Machine, lets it join its cluster as a Node, and removes it with its Machine.
Looks after MachineClasses, and for VMs that belong to no Machine.
""",
    aliases=("machineclass", "machine", "machinesafety"),
)
MACHINE_CONTROLLER_MANAGER = Command(
    name="machine-controller-manager",
    introduction="""\
Keeps as many Machines as MachineSets and MachineDeployments ask for, and rolls them to another
template within the bounds that these set. Needs no cloud: machine-controller makes the VMs.
""",
    aliases=("machineset", "machinedeployment", "machineovershoot"),
    defaults={"port": 10258, "concurrent-syncs": 10},
    has_cloud=False,
)
COMMANDS = {one.name: one for one in (MACHINE_CONTROLLER, MACHINE_CONTROLLER_MANAGER)}
"""By their names."""
