"""Runs the daemon with another folder in the place of a Pod's service-account files."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

if __name__ == "__main__":
    from ccm.__main__ import main
    from ccm.kube import config

    config.load = functools.partial(config.load, service_account=Path(sys.argv[1]))
    del sys.argv[1]
    main()
