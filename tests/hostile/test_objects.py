"""Objects of a hostile tenant: whatever they contain, providers raise only errors of the SDK.

The annotations and fields are those that the providers declare, so new ones are covered.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from types import ModuleType
from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ccm import cloud
from ccm.serving import admission
from ccm.serving.admission import AnnotationSchema, ServiceAnnotations
from ccm.testing import machine_probes
from ccm.testing.builders import node
from ccm.testing.builders import service as build_service
from ccm.testing.contract import Harness
from ccm.testing.probes import CLUSTER
from providers.hcloud import machines as hcloud_specs
from providers.hcloud.testing import server as hcloud_server
from providers.openstack import machines as openstack_specs
from providers.openstack.testing import server as openstack_server
from providers.sim import machines as sim_specs
from providers.sim import server as sim_server
from providers.stackit import machines as stackit_specs
from providers.stackit.testing import server as stackit_server
from tests.contract.test_sim import SimHarness
from tests.hcloud.harness import HcloudHarness
from tests.openstack.harness import OpenStackHarness
from tests.stackit.harness import StackitHarness

PROVIDERS: Mapping[str, tuple[Any, Callable[[Any, str], Harness], ModuleType]] = {
    "hcloud": (hcloud_server, HcloudHarness, hcloud_specs),
    "openstack": (openstack_server, OpenStackHarness, openstack_specs),
    "sim": (sim_server, SimHarness, sim_specs),
    "stackit": (stackit_server, StackitHarness, stackit_specs),
}
EACH = pytest.mark.parametrize("name", PROVIDERS)

NUMBERS = (
    "9" * 14,
    "9" * 19,
    "9" * 20,
    "9" * 5000,
    "0" * 5000,
    "1e400",
    "NaN",
    "-1",
    "1_0",
    "0x1f",
    "²",
    "٣",
    "１２",
    "9" * 5000 + "s",
    f"0.{'9' * 5000}s",
    "²s",
    f"10.0.0.0/{'0' * 5000}",
    "10.0.0.0/²",
    f"{'9' * 5000}%",
)
WORDS = (
    "",
    " ",
    "\0",
    "\x1b[2J\x1b]0;x\x07",
    "a\r\nX-Header: b",
    "\u202e\ufeff",
    "../../servers/1",
    "?a=b&c=d#e",
    "%00%2e%2e/",
    "{0.__class__}",
    "a,,b, ,",
    "[" * 500,
)
LONG = ("x" * 50_000, "a," * 25_000, "-" * 50_000 + "!", "1h" * 25_000, "a=b," * 10_000)
PLAUSIBLE = (
    "true",
    "http",
    "https",
    "tcp",
    "managed",
    "uploaded",
    "10s",
    "80",
    "10.0.0.0/8",
    "p50",
)
"""Values that lead further in, so that the others are read."""


def one_of(choices: Sequence[str]) -> st.SearchStrategy[str]:
    # Not `sampled_from`, which shows all of them in each report.
    return st.integers(0, len(choices) - 1).map(choices.__getitem__)


texts = st.one_of(
    one_of(NUMBERS + WORDS + PLAUSIBLE),
    one_of(LONG),
    st.text(max_size=20),
    st.tuples(one_of(PLAUSIBLE), one_of(NUMBERS + WORDS)).map(",".join),
)


def deep(levels: int) -> Any:
    found: Any = {}
    for level in range(levels):
        found = {"a": found} if level % 2 else [found]
    return found


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([2**63, -(2**63) - 1, 2**64]),
    st.builds(pow, st.just(-10), st.sampled_from([30, 5001])),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e308, 0.5]),
    texts,
    st.builds(deep, st.sampled_from([3, 40, 900, 3000])),
    st.recursive(
        st.one_of(texts, st.integers(), st.none(), st.builds(pow, st.just(10), st.just(5001))),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=4,
    ),
)


def specs(declared: type[msgspec.Struct]) -> st.SearchStrategy[dict[str, Any]]:
    """Some fields of a Struct, with values of all kinds; a Struct within it likewise."""
    choices = {
        field.encode_name: st.one_of(values, *map(specs, _structs(field.type)))
        for field in msgspec.structs.fields(declared)
    }
    named = st.lists(st.sampled_from(sorted(choices)), max_size=3, unique=True)
    return named.flatmap(lambda names: st.fixed_dictionaries({one: choices[one] for one in names}))


def _structs(kind: Any) -> list[type[msgspec.Struct]]:
    kinds = (kind, *get_args(kind))
    return [one for one in kinds if isinstance(one, type) and issubclass(one, msgspec.Struct)]


@dataclass(kw_only=True)
class Place:
    """A provider with the fake of its cloud, and the actions of a tenant."""

    harness: Harness
    opened: cloud.Cloud
    declared: type[msgspec.Struct]
    machines: machine_probes.Machines
    run: Callable[[Any], Any]

    @property
    def schema(self) -> Sequence[cloud.ServiceAnnotation[Any]]:
        return self.opened.service_annotation_schema

    async def balance(self, annotations: Mapping[str, str]) -> None:
        """Create, update and delete the load balancer of a Service with annotations."""
        service = build_service(uid="uid-1", annotations=annotations)
        balancer: Any = self.opened.load_balancer
        await self.refused(lambda: self.digest(service))
        await self.refused(lambda: balancer.ensure_load_balancer(CLUSTER, service, []))
        await self.refused(lambda: balancer.update_load_balancer(CLUSTER, service, []))
        await self.refused(lambda: balancer.get_load_balancer(CLUSTER, service))
        await self.refused(lambda: balancer.ensure_load_balancer_deleted(CLUSTER, service))

    async def digest(self, service: cloud.Service) -> None:
        balancer: Any = self.opened.load_balancer
        balancer.load_balancer_digest(CLUSTER, service, [])

    async def admitted(self, annotations: Mapping[str, str]) -> bool:
        """Return whether the webhook allows the annotations. It always answers."""
        handler = ServiceAnnotations(lambda: AnnotationSchema(rules=self.schema), lambda _: True)
        asked = admission.decode(review(annotations))
        answer = await handler(asked)
        assert msgspec.json.decode(admission.encode(asked, answer))
        return answer.allowed

    async def judge(self, spec: Mapping[str, Any]) -> cloud.MachineRequest:
        """Validate the spec of a class, and create a machine of it."""
        driver: Any = self.machines.driver
        problems = await driver.validate_spec(spec, self.machines._credentials(), live=False)
        assert all(map(str, problems))
        labels = driver.machine_metrics_labels(spec)
        assert all(isinstance(text, str) for text in labels.values())
        req = self.machines.request(self.machines.identity(), provider_spec=spec)
        error = await self.refused(lambda: driver.create_machine(req))
        assert not problems or isinstance(error, cloud.InvalidArgument)
        return req

    async def order(self, spec: Mapping[str, Any]) -> None:
        """Also initialise, look up, delete and list the machine."""
        req, driver = await self.judge(spec), self.machines.driver
        for ask in (driver.initialize_machine, driver.get_machine_status, driver.delete_machine):
            await self.refused(partial(ask, req))
        await self.refused(
            lambda: driver.list_machines(self.machines.list_request(provider_spec=spec))
        )

    @staticmethod
    async def refused(ask: Callable[[], Awaitable[object]]) -> cloud.CloudError | None:
        """Return the SDK error of a call, or None. Any other error fails the test."""
        found = None
        try:
            await ask()
        except cloud.CloudError as error:
            found = error
        assert not isinstance(found, cloud.Internal)
        return found


@contextmanager
def place(name: str) -> Iterator[Place]:
    """One loop for all examples: a fake is started once."""
    module, harness_of, machine_specs = PROVIDERS[name]
    with asyncio.Runner() as runner:
        exits = AsyncExitStack()

        async def start() -> Place:
            service = module.Service()
            harness = harness_of(service, await exits.enter_async_context(module.serve(service)))
            opened = await exits.enter_async_context(harness.open())
            return Place(
                harness=harness,
                opened=opened,
                declared=machine_specs.Spec,
                machines=machine_probes.machines_of(opened, harness),
                run=runner.run,
            )

        try:
            yield runner.run(start())
        finally:
            runner.run(exits.aclose())


def review(annotations: Mapping[str, str]) -> bytes:
    """Return the AdmissionReview for the creation of a Service with annotations."""
    body = {
        "apiVersion": admission.API_VERSION,
        "kind": admission.KIND,
        "request": {
            "uid": "u",
            "operation": admission.CREATE,
            "kind": {"group": "", "version": "v1", "kind": "Service"},
            "object": {
                "metadata": {"name": "web", "namespace": "default", "annotations": annotations},
                "spec": {"type": "LoadBalancer", "ports": [{"port": 80, "nodePort": 30080}]},
            },
        },
    }
    return msgspec.json.encode(body)


@EACH
def test_malformed_numbers_in_annotations_are_refused(name: str) -> None:
    with place(name) as found:
        for rule in found.schema:
            for text in NUMBERS + WORDS:
                annotations = {rule.name: text}
                is_value = rule.fault(text) == ""
                assert found.run(found.admitted(annotations)) is is_value
                service = build_service(uid="uid-1", annotations=annotations)
                found.run(found.refused(partial(found.digest, service)))


@EACH
def test_arbitrary_annotations_are_served_or_refused(name: str) -> None:
    with place(name) as found:
        names = st.sampled_from([rule.name for rule in found.schema])

        @given(st.dictionaries(names, texts, min_size=1, max_size=5))
        def attack(annotations: Mapping[str, str]) -> None:
            found.run(found.admitted(annotations))
            found.run(found.balance(annotations))

        attack()


@EACH
def test_malformed_spec_fields_are_refused(name: str) -> None:
    wrong: Sequence[Any] = (
        *(10**30, -(10**30), 10**5000, math.nan, math.inf, True, None),
        *("9" * 5000, "²", "\0\x1b[2J", "../..", "x" * 50_000),
        *([], {}, [None], [[]], [10**5000], ["²", ""], {"": 10**5000}, {"²": "\0"}),
        *(deep(40), deep(900), deep(3000)),
    )
    with place(name) as found:
        good = found.harness.machine_spec()
        for field in msgspec.structs.fields(found.declared):
            for value in wrong:
                found.run(found.judge({**good, field.encode_name: value}))


@EACH
def test_arbitrary_specs_are_served_or_refused(name: str) -> None:
    with place(name) as found:
        good = found.harness.machine_spec()

        @given(specs(found.declared), st.dictionaries(texts, values, max_size=1))
        def attack(fields: dict[str, Any], unknown: dict[str, Any]) -> None:
            found.run(found.order({**good, **unknown, **fields}))

        attack()


@EACH
def test_arbitrary_provider_ids_are_served_or_refused(name: str) -> None:
    with place(name) as found:
        driver, numbers = found.machines.driver, count()
        beginnings = ["", *(f"{one}://" for one in (*found.opened.provider_schemes, "aws"))]

        @given(st.sampled_from(beginnings), texts)
        def attack(beginning: str, text: str) -> None:
            provider_id = f"{beginning}{text}"
            one = node(f"n-{next(numbers)}", provider_id=provider_id)
            req = found.machines.request(found.machines.identity(), provider_id)
            instances: Any = found.opened.instances
            found.run(found.refused(lambda: instances.instance_exists(one)))
            found.run(found.refused(lambda: driver.get_machine_status(req)))
            found.run(found.refused(lambda: driver.delete_machine(req)))

        attack()
