"""What the doctor reads of Deployments, Pods, Secrets and webhooks, and nothing more of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import msgspec

from ccm.model.meta import ObjectMeta, Wire


class KeyRef(Wire, frozen=True, kw_only=True):
    """A key of a Secret, or a whole one."""

    name: str = ""
    key: str = ""
    optional: bool | None = None


class ValueFrom(Wire, frozen=True, kw_only=True):
    """Where the value of a variable comes from."""

    secret_key_ref: KeyRef | None = None


class Variable(Wire, frozen=True, kw_only=True):
    """A variable of a container."""

    name: str = ""
    value_from: ValueFrom | None = None


class Variables(Wire, frozen=True, kw_only=True):
    """All keys of a Secret as variables."""

    secret_ref: KeyRef | None = None


class Mount(Wire, frozen=True, kw_only=True):
    """Where a container has a volume."""

    name: str = ""
    mount_path: str = ""
    sub_path: str = ""


class Port(Wire, frozen=True, kw_only=True):
    """A port of a container."""

    name: str = ""
    container_port: int = 0


class Container(Wire, frozen=True, kw_only=True):
    """One container."""

    name: str = ""
    image: str = ""
    command: list[str] | None = None
    args: list[str] | None = None
    ports: list[Port] | None = None
    env: list[Variable] | None = None
    env_from: list[Variables] | None = None
    volume_mounts: list[Mount] | None = None

    @property
    def words(self) -> list[str]:
        """The command line, as far as it is not the image's."""
        return [*(self.command or ()), *(self.args or ())]

    def flag(self, name: str) -> str:
        """The value of a flag, with its dashes; the last one counts, empty if there is none."""
        found = ""
        for word, following in pairwise([*self.words, ""]):
            if word.startswith(f"{name}="):
                found = word.removeprefix(f"{name}=")
            elif word == name:
                found = following
        return found


class Item(Wire, frozen=True, kw_only=True):
    """A key of a Secret, and the file that it is."""

    key: str = ""
    path: str = ""


class SecretVolume(Wire, frozen=True, kw_only=True):
    """A Secret as files."""

    secret_name: str = ""
    items: list[Item] | None = None
    optional: bool | None = None


class Volume(Wire, frozen=True, kw_only=True):
    """A volume; `secret` None: of another kind."""

    name: str = ""
    secret: SecretVolume | None = None


class PodSpec(Wire, frozen=True, kw_only=True):
    """What a Pod is to be."""

    node_name: str = ""
    host_network: bool = False
    containers: list[Container] | None = None
    volumes: list[Volume] | None = None


class Waiting(Wire, frozen=True, kw_only=True):
    """Why a container does not run yet."""

    reason: str = ""
    message: str = ""


class Terminated(Wire, frozen=True, kw_only=True):
    """How a container ended."""

    reason: str = ""
    exit_code: int = 0
    finished_at: str | None = None


class State(Wire, frozen=True, kw_only=True):
    """How a container is; running where both are None."""

    waiting: Waiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Wire, frozen=True, kw_only=True):
    """What became of a container."""

    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: State = State()
    last_state: State = State()


class Condition(Wire, frozen=True, kw_only=True):
    """A condition of a Pod."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""


class PodStatus(Wire, frozen=True, kw_only=True):
    """How a Pod is."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    conditions: list[Condition] | None = None
    container_statuses: list[ContainerStatus] | None = None


class Pod(Wire, frozen=True, kw_only=True):
    """A Pod."""

    metadata: ObjectMeta
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Pods(Wire, frozen=True, kw_only=True):
    """Some Pods."""

    items: list[Pod] | None = None


class Template(Wire, frozen=True, kw_only=True):
    """What the Pods of a Deployment are made from."""

    spec: PodSpec = PodSpec()


class Selector(Wire, frozen=True, kw_only=True):
    """By which labels a Deployment knows its Pods."""

    match_labels: dict[str, str] | None = None


class DeploymentSpec(Wire, frozen=True, kw_only=True):
    """What a Deployment is to be."""

    replicas: int = 1
    selector: Selector = Selector()
    template: Template = Template()


class DeploymentStatus(Wire, frozen=True, kw_only=True):
    """How a Deployment is."""

    ready_replicas: int = 0


class Deployment(Wire, frozen=True, kw_only=True):
    """A Deployment."""

    metadata: ObjectMeta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()

    @property
    def key(self) -> str:
        """Namespace and name."""
        return f"{self.metadata.namespace}/{self.metadata.name}"

    @property
    def selector(self) -> str:
        """By which labels its Pods are known, as `kubectl -l` takes it."""
        labels = self.spec.selector.match_labels or {}
        return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))

    @property
    def containers(self) -> Sequence[Container]:
        """Those of its Pods."""
        return self.spec.template.spec.containers or ()


class Deployments(Wire, frozen=True, kw_only=True):
    """Some Deployments."""

    items: list[Deployment] | None = None


class Secret(Wire, frozen=True, kw_only=True):
    """The keys of a Secret; its values are not looked at."""

    data: dict[str, msgspec.Raw] | None = None


class WebhookService(Wire, frozen=True, kw_only=True):
    """The Service behind a webhook."""

    namespace: str = ""
    name: str = ""
    path: str = ""


class WebhookClient(Wire, frozen=True, kw_only=True):
    """How the API server reaches a webhook: a Service, or a URL."""

    service: WebhookService | None = None
    url: str = ""


class Webhook(Wire, frozen=True, kw_only=True):
    """A webhook; without failure policy, its failures refuse requests."""

    name: str = ""
    client_config: WebhookClient = WebhookClient()
    failure_policy: str = "Fail"


class WebhookConfiguration(Wire, frozen=True, kw_only=True):
    """A ValidatingWebhookConfiguration."""

    webhooks: list[Webhook] | None = None


class WebhookConfigurations(Wire, frozen=True, kw_only=True):
    """Some ValidatingWebhookConfigurations."""

    items: list[WebhookConfiguration] | None = None


class EndpointConditions(Wire, frozen=True, kw_only=True):
    """How an endpoint is; `ready` None: unknown, which counts as ready (Kubernetes)."""

    ready: bool | None = None


class Endpoint(Wire, frozen=True, kw_only=True):
    """One Pod behind a Service."""

    conditions: EndpointConditions = EndpointConditions()


class EndpointSlice(Wire, frozen=True, kw_only=True):
    """Some endpoints of a Service."""

    endpoints: list[Endpoint] | None = None


class EndpointSlices(Wire, frozen=True, kw_only=True):
    """Some EndpointSlices."""

    items: list[EndpointSlice] | None = None
