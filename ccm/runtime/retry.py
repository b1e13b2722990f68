"""When a failed reconcile comes back, by the class of its error. Pure.

The policy of cloud errors is the table in `ccm.cloud.errors`; errors of the API server
follow the same kinds of answer.
"""

from __future__ import annotations

from dataclasses import dataclass

from ccm.base.backoff import Exponential
from ccm.cloud import errors as cloud
from ccm.cloud.errors import Retry
from ccm.kube import errors as kube

LONG = Exponential(base_s=30.0, factor=2.0, cap_s=600.0)
"""Delays of `Retry.LONG`: credentials and quotas are changed by people."""

LEAST_AFTER_S = 1.0
"""Shortest delay of `Retry.AFTER`: "at once", said again and again, would spin."""

SLOW_S = 600.0
"""Delay of `Retry.SLOW`; a change of the object comes earlier."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Again:
    """What follows from an error.

    Attributes:
        retry: the kind of delay.
        after_s: seconds until the next try; None = the queue's back-off decides.
        event: whether people should get a Warning event.
        outage: the other side was unreachable or overloaded, which passes for all keys at
            once.
        defect: the error is one nobody foresaw: a defect of ours.
    """

    retry: Retry
    after_s: float | None = None
    event: bool = True
    outage: bool = False
    defect: bool = False


def again(error: Exception) -> Again:
    """Classify an error of a reconcile."""
    if isinstance(error, cloud.CloudError):
        return _cloud(error)
    if isinstance(error, kube.KubeError):
        return _kube(error)
    return Again(retry=Retry.BACK_OFF, defect=True)


def delay_s(answer: Again, failures: int) -> float | None:
    """Seconds until the next try after `failures` earlier ones; None = the queue's back-off."""
    if answer.retry is Retry.AFTER:
        return None if answer.after_s is None else max(answer.after_s, LEAST_AFTER_S)
    if answer.retry is Retry.LONG:
        return LONG.even_delay(failures)
    if answer.retry is Retry.SLOW:
        return SLOW_S
    return None


def _cloud(error: cloud.CloudError) -> Again:
    policy = cloud.policy_for(error)
    if isinstance(error, cloud.RetryAfter):
        return Again(retry=Retry.AFTER, after_s=error.seconds, event=policy.event)
    # Refused credentials stop every key alike, and one success means all may go on.
    outage = isinstance(error, cloud.Unavailable | cloud.DeadlineExceeded | cloud.Unauthenticated)
    return Again(retry=policy.retry, event=policy.event, outage=outage)


def _kube(error: kube.KubeError) -> Again:
    if isinstance(error, kube.Invalid):
        return Again(retry=Retry.SLOW)
    if isinstance(error, kube.Forbidden):
        # A starting API server refuses what it will allow once it has read its roles, so the
        # first tries come soon; where a right is really missing, they become rare.
        return Again(retry=Retry.BACK_OFF)
    if isinstance(error, kube.TooMany) and error.retry_after is not None:
        return Again(retry=Retry.AFTER, after_s=error.retry_after, event=False)
    # A conflict or an API server in trouble is nobody's mistake: no event about the object.
    outage = isinstance(error, kube.Unreachable | kube.ServerError | kube.TooMany)
    return Again(retry=Retry.BACK_OFF, event=False, outage=outage)
