"""`python -m ccm` and `cloud-controller-manager`: the daemon; and its commands for machines."""

from __future__ import annotations

import gc

# What is imported is no garbage, and looking for some among it takes a tenth of a start.
# `run` switches it on again.
gc.disable()

from ccm.app.main import leave  # noqa: E402 - see above
from ccm.app.main import main as run  # noqa: E402


def main() -> None:
    """Run the daemon and end the process with its exit code."""
    leave(run())


def machine_controller() -> None:
    """`machine-controller`: the controllers that make VMs."""
    from ccm.app.machines.commands import MACHINE_CONTROLLER

    leave(run(program=MACHINE_CONTROLLER.program))


def machine_controller_manager() -> None:
    """`machine-controller-manager`: the controllers that make Machines."""
    from ccm.app.machines.commands import MACHINE_CONTROLLER_MANAGER

    leave(run(program=MACHINE_CONTROLLER_MANAGER.program))


if __name__ == "__main__":
    main()
