"""The daemon whose search for orphans waits for nothing but flags.

Otherwise the leader searches ten seconds after its start, and entries that changed within the last
fifteen minutes do not count as absent.
"""

from __future__ import annotations

from ccm.__main__ import main
from ccm.app import journal
from ccm.runtime import orphans

if __name__ == "__main__":
    journal.START_S = 0.0
    orphans.SETTLE_S = 0.0
    main()
