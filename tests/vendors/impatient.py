"""The daemon that reports a busy cloud at once, and renews even a new token that is refused."""

from __future__ import annotations

from ccm.__main__ import main
from ccm.cloud import rest
from ccm.runtime import backoff

if __name__ == "__main__":
    backoff.REPORT_AFTER_S = 0.0
    rest.MIN_RENEW_AGE_S = 0.0
    main()
