"""Approves the certificate requests of kubelets for their serving certificates.

A request is compared with the Machine of its node (`ccm.machines.serving_certificates`). A request
that does not match is left to other approvers: it is never denied. A change of the node's Machine
starts another comparison: the Machine's addresses may be stored after the kubelet sent the request.
"""

from __future__ import annotations

import asyncio

from ccm.base import log
from ccm.kube.client import Client
from ccm.kube.informer import Informer
from ccm.kube.resources import CERTIFICATE_REQUESTS
from ccm.machines import serving_certificates as certificates
from ccm.machines.caches import Caches
from ccm.model.certificates import CertificateSigningRequest
from ccm.model.machines import Machine
from ccm.model.names import STATUS_TRUE
from ccm.model.patches import Patch, uid_precondition, version_precondition
from ccm.runtime.controller import DONE, Controller, ReconcileResult, Watch
from ccm.runtime.writer import ObjectWriter, PatchStep

NAME = "node-csr-approver"
QUEUE_NAME = "nodecsrapprover"

WORKERS = 4
"""Number of requests processed concurrently; workers mostly wait for the API server."""

REASON = "NodeCSRApprover"
"""Reason of the condition `Approved`."""


class NodeCSRApprover:
    """The approver of kubelets' serving certificates.

    Args:
        caches: caches of the machine controllers; they are ready.
        requests: informer of all CertificateSigningRequests.
        client: client of the cluster that the nodes join.
        signer: name of the signer of kubelets' serving certificates.
    """

    def __init__(
        self,
        *,
        caches: Caches,
        requests: Informer[CertificateSigningRequest],
        client: Client,
        signer: str,
    ) -> None:
        self._machines, self._is_ignored = caches.machines.store, caches.codec.is_ignored
        self._requests, self._signer = requests.store, signer
        resource = client.resource(CERTIFICATE_REQUESTS)
        self._write = ObjectWriter(resource, strategic=False)
        self._by_node: dict[str, set[str]] = {}
        """Name of a node -> keys of the Machines with this node name."""
        self._pending: dict[str, set[str]] = {}
        """Name of a user -> names of its pending requests."""
        self._log = log.logger(NAME)
        self.controller = Controller(
            NAME,
            queue=QUEUE_NAME,
            reconcile=self.sync,
            workers=WORKERS,
            watches=[
                Watch(informer=caches.machines, changed=self._machine_changed),
                Watch(informer=requests, changed=self._request_changed),
            ],
        )

    async def sync(self, key: str) -> ReconcileResult:
        """Approve one request if it matches the Machine of its node.

        Raises:
            KubeError: the write failed.
        """
        request = self._requests.get(key)
        if request is None or not request.is_pending:
            return DONE
        node, machines = "", list[Machine]()
        try:
            node = certificates.requesting_node(request, self._signer)
            names = await asyncio.to_thread(certificates.requested_names, request)
            named = map(self._machines.get, sorted(self._by_node.get(node, ())))
            machines = [one for one in named if one is not None and not self._is_ignored(one)]
            machine = certificates.check_names(names, machines)
        except certificates.RequestRefused as refusal:
            # Nodes without a Machine, such as those of the control plane, have other approvers.
            level = self._log.warning if machines else self._log.info
            level("certificate request not approved", node=node, reason=str(refusal))
            return DONE
        text = f"the names in the request are those of Machine {machine.key}"
        written = await self._write.change(
            request, PatchStep(lambda obj: _approval_patch(obj, text), "approval")
        )
        if written.changed:
            self._log.info("certificate request approved", node=node, machine=machine.key)
        return DONE

    # --- the caches ---------------------------------------------------------------------------

    def _machine_changed(self, old: Machine | None, new: Machine | None, _: bool) -> bool:
        if old is not None and new is not None and self._view(old) == self._view(new):
            return False
        for machine, is_gone in ((old, True), (new, False)):
            if machine is not None and machine.node_name:
                _update(self._by_node, machine.node_name, machine.key, is_gone=is_gone)
        for node in {machine.node_name for machine in (old, new) if machine is not None}:
            for name in self._pending.get(f"{certificates.USER_PREFIX}{node}", ()):
                self.controller.queue.add(name)
        return False

    def _view(self, machine: Machine) -> object:
        """Return the properties of a Machine on which an approval depends."""
        return machine.node_name, machine.status.addresses, self._is_ignored(machine)

    def _request_changed(
        self,
        old: CertificateSigningRequest | None,
        new: CertificateSigningRequest | None,
        _: bool,
    ) -> bool:
        # Other signers have other approvers.
        is_pending = new is not None and new.is_pending and new.spec.signer_name == self._signer
        for request, is_gone in ((old, True), (new, not is_pending)):
            if request is not None:
                _update(self._pending, request.spec.username, request.name, is_gone=is_gone)
        # A resync would only repeat the log line.
        return is_pending and old is not new


def _update(index: dict[str, set[str]], name: str, key: str, *, is_gone: bool) -> None:
    """Add a key to the entry `name` of an index, or remove the key from the entry."""
    keys = index.setdefault(name, set())
    if is_gone:
        keys.discard(key)
    else:
        keys.add(key)
    if not keys:
        del index[name]


def _approval_patch(obj: CertificateSigningRequest, message: str) -> Patch | None:
    """Return the patch that approves a request; None = the request is already decided."""
    if not obj.is_pending:
        return None
    approved = {"type": "Approved", "status": STATUS_TRUE, "reason": REASON, "message": message}
    metadata = uid_precondition(obj) | version_precondition(obj)
    return {"metadata": metadata, "status": {"conditions": [approved]}}
