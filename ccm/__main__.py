"""Entry points of the daemon and of its two commands for machines."""

from __future__ import annotations

import gc

# Imports produce no garbage, yet collecting during them takes a tenth of the start time.
# `run` enables the collector again.
gc.disable()

from ccm.app.main import exit_process  # noqa: E402 - see above
from ccm.app.main import main as run  # noqa: E402


def main() -> None:
    """Run the daemon and end the process with its exit code."""
    exit_process(run())


def machine_controller() -> None:
    """Run `machine-controller`: the controllers that create VMs."""
    from ccm.app.machines.commands import MACHINE_CONTROLLER

    exit_process(run(program=MACHINE_CONTROLLER.program))


def machine_controller_manager() -> None:
    """Run `machine-controller-manager`: the controllers that create Machines."""
    from ccm.app.machines.commands import MACHINE_CONTROLLER_MANAGER

    exit_process(run(program=MACHINE_CONTROLLER_MANAGER.program))


if __name__ == "__main__":
    main()
