"""`python -m ccm` and `cloud-controller-manager`: the daemon."""

from __future__ import annotations

from ccm.app.main import leave
from ccm.app.main import main as run


def main() -> None:
    """Run the daemon and end the process with its exit code."""
    leave(run())


if __name__ == "__main__":
    main()
