"""Classes of errors and when their work is tried again."""

from __future__ import annotations

import pytest

from ccm.cloud import errors as cloud
from ccm.cloud.errors import Retry
from ccm.kube import errors as kube
from ccm.runtime.retry import LEAST_AFTER_S, LONG, SLOW_S, Again, again, delay_s


def api(kind: type[kube.ApiError], status: int, retry_after: float | None = None) -> kube.ApiError:
    return kind(status=status, reason="R", message="m", retry_after=retry_after)


class Special(cloud.ResourceExhausted):
    """A provider's own class."""


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (cloud.Internal("x"), Again(retry=Retry.BACK_OFF)),
        (cloud.NotFound("x"), Again(retry=Retry.BACK_OFF)),
        (cloud.Unavailable("x"), Again(retry=Retry.BACK_OFF, outage=True)),
        (cloud.DeadlineExceeded("x"), Again(retry=Retry.BACK_OFF, outage=True)),
        (cloud.Unauthenticated("x"), Again(retry=Retry.LONG, outage=True)),
        (Special("x"), Again(retry=Retry.LONG)),
        (cloud.InvalidArgument("x"), Again(retry=Retry.SLOW)),
        (cloud.Unimplemented("x"), Again(retry=Retry.SLOW)),
        (cloud.ImplementedElsewhere("x"), Again(retry=Retry.NEVER, event=False)),
        (
            cloud.RetryAfter("x", seconds=7),
            Again(retry=Retry.AFTER, after_s=7, event=False),
        ),
        (api(kube.Invalid, 422), Again(retry=Retry.SLOW)),
        (api(kube.Forbidden, 403), Again(retry=Retry.BACK_OFF)),
        (api(kube.Conflict, 409), Again(retry=Retry.BACK_OFF, event=False)),
        (api(kube.Missing, 404), Again(retry=Retry.BACK_OFF, event=False)),
        (api(kube.ServerError, 503), Again(retry=Retry.BACK_OFF, event=False, outage=True)),
        (api(kube.TooMany, 429), Again(retry=Retry.BACK_OFF, event=False, outage=True)),
        (api(kube.TooMany, 429, 3), Again(retry=Retry.AFTER, after_s=3, event=False)),
        (
            kube.Unreachable("x", kind="refused"),
            Again(retry=Retry.BACK_OFF, event=False, outage=True),
        ),
        (KeyError("x"), Again(retry=Retry.BACK_OFF, defect=True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_follows_from_an_error(error: Exception, expected: Again) -> None:
    assert again(error) == expected


@pytest.mark.parametrize(
    ("answer", "delays"),
    [
        (Again(retry=Retry.BACK_OFF), [None, None, None]),
        (Again(retry=Retry.AFTER, after_s=7), [7, 7, 7]),
        (Again(retry=Retry.AFTER, after_s=0), [LEAST_AFTER_S] * 3),
        (Again(retry=Retry.SLOW), [SLOW_S, SLOW_S, SLOW_S]),
        (Again(retry=Retry.LONG), [30, 60, LONG.cap_s]),
    ],
    ids=lambda value: value.retry.name if isinstance(value, Again) else "",
)
def test_delays(answer: Again, delays: list[float | None]) -> None:
    assert [delay_s(answer, failures) for failures in (0, 1, 100_000)] == delays
