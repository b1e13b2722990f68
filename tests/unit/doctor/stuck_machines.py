"""A daemon with the machine controllers in memory, and what `kube-ccm explain` says of Machines.

The controllers are made as the daemon makes them, from their manifests; the daemon's answer goes
through the wire's form before it is judged.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec

from ccm.app import health, options
from ccm.app.controllers import enabled
from ccm.app.health import (
    Vitals,
)
from ccm.app.options import gates
from ccm.base.tasks import cancel_and_join, spawn
from ccm.cloud import Cloud
from ccm.cloud.calls.handle import Handle
from ccm.doctor import explain as doctor
from ccm.gardener import codec
from ccm.gardener.types import Machine
from ccm.kube.informer import Informers
from ccm.runtime.account import Answer
from ccm.runtime.deletions import DeletionRecord
from ccm.runtime.manifest import ControllerContext
from ccm.testing.clock import settle
from tests.support.configmap import Api
from tests.unit.controllers.machines import CLUSTER, World

FLAGS = ("--cloud-provider=fake", f"--cluster-id={CLUSTER}")
M0 = "default/m0"


class StuckMachines(World):
    """The daemon and its surroundings."""

    def __init__(self) -> None:
        super().__init__()
        self.vitals = Vitals()
        self.chosen = options.parse(FLAGS)
        self.has_machines = True

    @contextlib.asynccontextmanager
    async def leading(
        self, *flags: str, controllers: str = "machine,machineclass"
    ) -> AsyncIterator[None]:
        """The controllers at work."""
        self.chosen = options.parse([*FLAGS, f"--controllers={controllers}", *flags])
        client = self.server.client()
        informers = Informers(client)
        driver = self.driver if self.has_machines else None
        handle = Handle(Cloud(name="fake", machines=driver, has_cluster_id=True))
        record = DeletionRecord(Api(), namespace="kube-system", owner="lease")
        self.vitals.opened(handle)
        self.vitals.informers = informers
        context = ControllerContext(
            client=lambda _name: client,
            recorder=lambda _name: self,
            informers=informers,
            handle=handle,
            inventory=None,
            gates=gates.build({}),
            deletions=record,
        )
        running = [spawn(informers.run(), name="informers")]
        async with contextlib.AsyncExitStack() as stack:
            for manifest, work in enabled(self.chosen, context, left_out=self.vitals.left_out):
                stack.enter_context(self.vitals.running(manifest.name, work))
                running.append(spawn(work.run(), name=manifest.name))
            try:
                await settle()
                yield
                assert [task for task in running if task.done()] == []
            finally:
                await cancel_and_join(*running)

    def case(self, name: str = M0, **facts: Any) -> doctor.Subject:
        """What the command knows: the object, and the daemon's answer."""
        told = health.about("machine", name, self.chosen, self.vitals)
        answer = msgspec.json.decode(msgspec.json.encode(told), type=Answer)
        namespace, _, bare = name.partition("/")
        path = f"/apis/machine.sapcloud.io/v1alpha1/namespaces/{namespace}/machines/{bare}"
        body = self.server.get(path)
        found = codec.machine(msgspec.convert(body, Machine)) if body else None
        return doctor.Subject(kind="machine", name=name, found=found, answer=answer, **facts)

    def says(self, name: str = M0) -> str:
        """Return the first line; print the others for the reader of a failure."""
        subject = self.case(name)
        first, *others = doctor.lines(subject, doctor.judge(subject))
        print(first, *others, sep="\n")
        return first

    def advice(self, name: str = M0) -> str:
        """What to do about it."""
        return "; ".join(doctor.judge(self.case(name)).advice)
