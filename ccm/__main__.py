"""Entry points of the daemon and of the two machine commands."""

from __future__ import annotations

import gc

# Imports produce no garbage, but garbage collections during imports take a tenth of the start time.
# `ccm.app.main` enables the collector again.
gc.disable()

from ccm.app.main import exit_process  # noqa: E402 - see above
from ccm.app.main import main as run  # noqa: E402


def main() -> None:
    """Run `cloud-controller-manager`, and end the process with its exit code."""
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
