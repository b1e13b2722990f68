"""The journal of cloud resources, read from the leader or directly from the storage."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec

from ccm.app.journalchanges import JournalChanges
from ccm.app.provider import Misconfigured
from ccm.cloud.calls.client import CloudClient
from ccm.cloud.interface import Cloud
from ccm.doctor import ExaminationError, cluster, daemons, explain_facts, provider
from ccm.doctor.case import Case, CheckFinding, count, ok, skip, warn
from ccm.doctor.explain import NoAnswer
from ccm.kube.credentials import TlsSettings
from ccm.persistence.errors import PersistenceError
from ccm.persistence.journal import Journal
from ccm.runtime.journal_report import ADOPT, JournalChange, JournalResponse, by_age
from ccm.runtime.object_status import JOURNAL_PATH

SYSTEM_TRUST = TlsSettings()

Exchange = Callable[[JournalChange | None], Awaitable[JournalResponse]]
"""Function that changes the journal, or reads it (None).

Raises ExaminationError if no daemon responded, or if the request was refused."""


async def ask(
    case: Case,
    change: JournalChange | None = None,
    *,
    address: str = "",
    trust: TlsSettings = SYSTEM_TRUST,
) -> JournalResponse:
    """Send a change to the leader, or to the daemon at an address; None = read the journal.

    Raises:
        ExaminationError: no daemon responded, or the request was refused.
    """
    body = None if change is None else msgspec.json.encode(change)
    request = explain_facts.DaemonRequest(path=JOURNAL_PATH, response=JournalResponse, body=body)
    answer = await explain_facts.ask_daemon(case, request, address, trust)
    if isinstance(answer, NoAnswer):
        raise ExaminationError(f"{answer.why}; {answer.advice}")
    if answer.fault or not answer.leads:
        raise ExaminationError(answer.fault or "the queried daemon does not lead")
    return answer


async def open_offline(case: Case, action: str) -> Exchange:
    """Open the journal's storage without a daemon; the case's `exit_stack` closes it.

    Args:
        case: case with `cluster` and `client`.
        action: action of the changes; empty: the journal is only read.

    Raises:
        ExaminationError: the storage or the provider cannot be opened, or the journal is to be
            changed although a daemon leads, or may run without a Lease.
        KubeError: the API server failed.
    """
    if action:
        if not case.options.leader_elect:
            raise ExaminationError(
                "--leader-elect=false: without a Lease, a running daemon would not be noticed, and "
                "would undo the change; omit --offline, or stop the daemon and omit "
                "--leader-elect=false"
            )
        await daemons.lease(case)
        if case.lease_holder:
            raise ExaminationError(f"{case.lease_holder} holds the Lease; omit --offline")
    cloud = Cloud(name="none")
    if action == ADOPT:
        await provider.open_provider(case)
        cloud = case.cloud
    try:
        stores = await case.exit_stack.enter_async_context(cluster.open_stores(case))
        await stores.objects.tried.wait()
        if stores.objects.fault:
            raise ExaminationError(stores.objects.fault)
        journal = Journal(writer=stores.writer)
        case.exit_stack.push_async_callback(journal.close)
        await journal.open(stores.objects.provider, stores.objects.instance)
    except (Misconfigured, PersistenceError) as error:
        raise ExaminationError(str(error)) from error
    client = CloudClient(cloud, cluster_name=case.options.cluster_name)
    classes = case.options.load_balancer_classes
    changes = JournalChanges(journal=journal, api=case.client, client=client, classes=classes)

    async def exchange(change: JournalChange | None) -> JournalResponse:
        if change is None:
            return JournalResponse(entries=by_age(journal.entries.values()))
        response = await changes.execute(change)
        if response.fault:
            raise ExaminationError(response.fault)
        return response

    return exchange


async def check(case: Case) -> CheckFinding:
    """Report the orphans that the leader has found with the journal."""
    try:
        response = await ask(case)
    except ExaminationError as error:
        return skip(f"the leader was not asked: {error}")
    total = count(len(response.entries), "entry", "entries")
    if not response.orphans and response.down:
        return warn(f"the journal cannot be written: {response.down}", "correct the storage")
    if not response.orphans:
        return ok(f"{total}, no orphan")
    return warn(
        f"{total}, {count(len(response.orphans), 'orphan')}",
        "see the text of each; kube-ccm journal show NAME has the details",
        details=[f"{name}: {text}" for name, text in response.orphans.items()],
    )
