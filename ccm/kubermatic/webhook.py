"""Webhook that sets defaults in new Machines and MachineDeployments, and validates them.

The webhook makes no request. Checks that need the cloud, a Secret or a ConfigMap are done by the
controller before it creates an instance. As in Kubermatic, MachineSets are not checked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.serialization import load_ssh_public_identity

from ccm.cloud import errors
from ccm.cloud.interface import Cloud
from ccm.cloud.kubermatic import (
    CLOUD_PROVIDERS,
    KubermaticDefaults,
    OSNotSupported,
    ProviderConfig,
    TerminalError,
    decode_config,
    default_operating_system,
)
from ccm.kubermatic import names
from ccm.kubermatic import types as documents
from ccm.kubermatic.codec import MACHINE_DEPLOYMENTS, MACHINES, label_operating_system
from ccm.kubermatic.decoding import DEFAULT_HISTORY, DEFAULT_SURGE, DEFAULT_UNAVAILABLE
from ccm.kubermatic.versions import kubelet_version_fault
from ccm.machines import replicas
from ccm.machines.documents import without_empty
from ccm.model.machines import MachineDeployment, Strategy
from ccm.model.patches import json_patch
from ccm.serving.admission import (
    ALLOWED,
    CREATE,
    UPDATE,
    AdmissionRequest,
    AdmissionResponse,
)

Json = dict[str, Any]

_DEPLOYMENT_DEFAULTS: Mapping[str, Any] = {
    "replicas": 1,
    "minReadySeconds": 0,
    "revisionHistoryLimit": DEFAULT_HISTORY,
    "progressDeadlineSeconds": 600,
    "strategy": {
        "type": Strategy.ROLLING.value,
        "rollingUpdate": {"maxSurge": DEFAULT_SURGE, "maxUnavailable": DEFAULT_UNAVAILABLE},
    },
}
"""Defaults of a MachineDeployment's spec (Kubermatic)."""


MAX_FAULTS = 20
"""Maximum number of faults in the message of a denied write."""


class Denial(Exception):
    """The write is denied; the message is the cause."""


class MachineWebhook:
    """Webhook for Machines and MachineDeployments.

    Args:
        cloud: returns the current cloud.
        constraints: value of `--kubernetes-version-constraints`.
    """

    def __init__(self, cloud: Callable[[], Cloud], constraints: str) -> None:
        self._cloud = cloud
        self._constraints = constraints

    async def __call__(self, request: AdmissionRequest) -> AdmissionResponse:
        """Return the patch with the defaults, or deny an invalid object."""
        kind = request.kind
        if (kind.group, kind.version) != (names.GROUP, names.VERSION) or request.sub_resource:
            return ALLOWED
        if request.operation not in (CREATE, UPDATE):
            return ALLOWED
        before, new = _object(request.object), _object(request.object)
        # A check must never keep a finalizer of a deleted object from being removed.
        if _mapping(new.get("metadata")).get("deletionTimestamp"):
            return ALLOWED
        old = _object(request.old_object) if request.operation == UPDATE else None
        warnings: list[str] = []
        try:
            if kind.kind == MACHINES.kind:
                self._machine(request.object, new, old, warnings)
            elif kind.kind == MACHINE_DEPLOYMENTS.kind:
                self._deployment(request.object, new, old, warnings)
        except (Denial, msgspec.ValidationError) as denial:
            return AdmissionResponse(allowed=False, message=str(denial))
        return AdmissionResponse(
            allowed=True, warnings=tuple(warnings), patch=tuple(json_patch(before, new))
        )

    def _machine(self, body: msgspec.Raw, new: Json, old: Json | None, warnings: list[str]) -> None:
        """Default and validate a Machine."""
        document: documents.Machine = MACHINES.object_decoder.decode(body)
        spec = {**new.get("spec", {})}
        has_bypass = document.annotations.get(names.ANNOTATION_BYPASS) == "true"
        if names.ANNOTATION_BYPASS in document.annotations:
            del new["metadata"]["annotations"][names.ANNOTATION_BYPASS]
        if old is None:
            spec = label_operating_system(self._defaulted(spec, document.spec, "", warnings))
        new["spec"] = spec = _named(spec, document.name)
        if old is not None:
            before = _named(_mapping(old.get("spec")), document.name)
            _check_immutable(without_empty(before), without_empty(spec), has_bypass=has_bypass)

    def _deployment(
        self, body: msgspec.Raw, new: Json, old: Json | None, warnings: list[str]
    ) -> None:
        """Default and validate a MachineDeployment."""
        deployment = MACHINE_DEPLOYMENTS.decode(body)
        if faults := [*deployment.faults, *_bound_faults(deployment)]:
            raise Denial(_message(faults))
        spec = new["spec"] = _filled(new["spec"], _DEPLOYMENT_DEFAULTS)
        before = _template_spec(old or {})
        if old is None or without_empty(_template_spec(new)) != without_empty(before):
            document: documents.MachineSpec = deployment.template.source.spec
            defaulted = self._defaulted(_template_spec(new), document, "spec.template: ", warnings)
            spec["template"] = {**spec["template"], "spec": defaulted}

    def _defaulted(
        self, spec: Json, document: documents.MachineSpec, where: str, warnings: list[str]
    ) -> Json:
        """Return the spec of a machine with its defaults.

        Args:
            spec: the spec.
            document: the same spec, decoded.
            where: beginning of messages.
            warnings: list to which warnings for the client are appended.

        Raises:
            Denial: the spec is invalid.
        """
        try:
            config = decode_config(document.provider_spec.value)
            if faults := list(self._faults(config, document)):
                raise Denial(where + _message(faults))
            system = default_operating_system(config).operating_system_spec
            value: Mapping[str, Any] = document.provider_spec.value or {}
            if system != config.operating_system_spec:
                value = {**value, "operatingSystemSpec": system}
            value = self._with_provider_defaults(config, value, document, warnings)
        except (errors.CloudError, TerminalError) as error:
            raise Denial(f"{where}{error}") from error
        return {**spec, "providerSpec": {**spec["providerSpec"], "value": dict(value)}}

    def _with_provider_defaults(
        self,
        config: ProviderConfig,
        value: Mapping[str, Any],
        document: documents.MachineSpec,
        warnings: list[str],
    ) -> Mapping[str, Any]:
        driver: object = self._cloud().kubermatic
        is_served = self._serves(config.cloud_provider)
        if not (is_served and isinstance(driver, KubermaticDefaults)):
            return value
        try:
            return driver.add_defaults(value, document.versions.kubelet)
        except errors.Unimplemented as error:
            warnings.append(f"defaults of the provider are not set: {error}")
            return value

    def _serves(self, provider: str) -> bool:
        """Return whether this daemon serves a provider."""
        cloud = self._cloud()
        served = cloud.with_kubermatic().machine_providers if cloud.kubermatic else ()
        return provider.casefold() in map(str.casefold, served)

    def _faults(self, config: ProviderConfig, document: documents.MachineSpec) -> Iterator[str]:
        """Yield why a spec of a machine is invalid, whatever its provider."""
        where, provider = "spec.providerSpec.value", config.cloud_provider
        # Another program may serve the other providers in `CLOUD_PROVIDERS`.
        if provider not in CLOUD_PROVIDERS and not self._serves(provider):
            known = ", ".join(sorted(CLOUD_PROVIDERS))
            yield f"{where}.cloudProvider is {provider!r}; it must be one of {known}"
        try:
            default_operating_system(config)
        except OSNotSupported as error:
            yield f"{where}.{error.message}"
        kubelet = document.versions.kubelet
        if fault := kubelet_version_fault(kubelet, self._constraints):
            yield f"spec.versions.kubelet is {kubelet!r}; it {fault}"
        if document.config_source is not None:
            yield "spec.configSource is set, but has no effect; remove it"
        for number, text in enumerate(config.ssh_public_keys):
            if not is_authorized_key(text):
                yield (
                    f"{where}.sshPublicKeys[{number}] is {text[:_SHOWN]!r}...; it must be a line "
                    "of authorized_keys, such as ssh-ed25519 AAAA..."
                )


def _object(body: msgspec.Raw) -> Json:
    """Decode an object as JSON."""
    return msgspec.json.decode(body, type=Json)


def _mapping(value: Any) -> Json:
    """Return the value if it is a JSON object, else an empty object."""
    return value if isinstance(value, dict) else {}


def _template_spec(obj: Json) -> Json:
    """Return the spec in the template of a deployment; empty if there is none."""
    return _mapping(_mapping(_mapping(obj.get("spec")).get("template")).get("spec"))


def _named(spec: Json, name: str) -> Json:
    """Return the spec of a Machine; a missing name of the Node becomes the Machine's name.

    A Machine whose name the API server will generate has no name yet.
    """
    metadata = _mapping(spec.get("metadata"))
    if not name or metadata.get("name"):
        return spec
    return {**spec, "metadata": {**metadata, "name": name}}


def _check_immutable(before: Json, after: Json, *, has_bypass: bool) -> None:
    """Raise Denial if an immutable field in the spec of a Machine changed.

    The first provider ID may always be set. With `has_bypass`, all other fields may change.
    """
    provider_id = before.get("providerID")
    if provider_id and after.get("providerID") != provider_id:
        raise Denial(f"spec.providerID is {provider_id!r} and immutable; do not change it")
    changed = [
        name
        for name in sorted(before.keys() | after.keys())
        if name != "providerID" and before.get(name) != after.get(name)
    ]
    if changed and not has_bypass:
        fields = ", ".join(f"spec.{name}" for name in changed)
        raise Denial(
            f"spec of a Machine is immutable, but {fields} changed; change the template of its "
            "MachineDeployment, or create a new Machine"
        )


def _filled(fields: Json, defaults: Mapping[str, Any]) -> Json:
    """Return a JSON object with defaults for the fields that are not set."""
    filled = dict(fields)
    for name, default in defaults.items():
        if isinstance(default, Mapping):
            filled[name] = _filled(filled.get(name) or {}, default)
        elif filled.get(name) in (None, ""):
            filled[name] = default
    return filled


def _message(faults: Sequence[str]) -> str:
    """Return the message for faults: at most `MAX_FAULTS`, as a spec may have thousands."""
    more = len(faults) - MAX_FAULTS
    shown = [*faults[:MAX_FAULTS], *([f"and {more} more"] if more > 0 else [])]
    return "; ".join(shown)


def _bound_faults(deployment: MachineDeployment) -> Iterator[str]:
    """Yield why the bounds of a rolling update are invalid, although each of them is an amount."""
    surge, unavailable = deployment.max_surge, deployment.max_unavailable
    if not (replicas.is_amount(surge) and replicas.is_amount(unavailable)):
        return
    where = "spec.strategy.rollingUpdate"
    # With 100 replicas, a percentage resolves to its own number.
    most = replicas.resolve_amount(unavailable, 100, up=True)
    if isinstance(unavailable, str) and most > 100:
        yield f"{where}.maxUnavailable is {unavailable!r}; it must be at most 100%"
    if most == replicas.resolve_amount(surge, 100, up=True) == 0:
        yield f"{where}: maxSurge and maxUnavailable are both 0; set one of them above 0"


_SHOWN = 20
"""Maximum number of characters of an invalid key in a message: the key may be a private key."""

_OPTIONS = re.compile(r'\A(?:[^\s"]|"(?:\\.|[^"\\])*")+[ \t]+')
"""Options in front of a key in authorized_keys; a quoted value may contain blanks."""


def is_authorized_key(text: str) -> bool:
    """Return whether a text consists of valid lines of authorized_keys."""
    lines = [line.strip() for line in text.splitlines()]
    keys = [line for line in lines if line and not line.startswith("#")]
    return bool(keys) and all(_is_key(line) or _is_key(_OPTIONS.sub("", line)) for line in keys)


def _is_key(line: str) -> bool:
    try:
        load_ssh_public_identity(line.encode())
    except (ValueError, UnsupportedAlgorithm):
        return False
    return True
