"""Which controllers start: those that are turned on and that the provider can serve."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

from ccm.app.options import Options, names
from ccm.app.options.controllers import MANIFESTS
from ccm.base import log
from ccm.runtime.controller import Controller
from ccm.runtime.manifest import ControllerContext, Manifest


def enabled(
    options: Options,
    context: ControllerContext,
    among: Collection[Manifest[Any]] = MANIFESTS,
    left_out: Callable[[str, str], object] = lambda _name, _why: None,
) -> Iterator[tuple[Manifest[Any], Controller]]:
    """Make those of some controllers that will run, in the order in which they start.

    `left_out` is told (name, why) of those that are turned on and will not run.
    """
    logger = log.logger("daemon")
    wanted = names.enabled(options.controllers)
    for manifest in among:
        if manifest not in wanted:
            logger.warning("controller is disabled", controller=manifest.name)
    for manifest in among:
        if manifest not in wanted:
            continue
        if reason := manifest.turned_off(options) or manifest.lacks(context.handle.cloud):
            logger.info("controller is skipped", controller=manifest.name, error=reason)
            left_out(manifest.name, reason)
        elif fault := manifest.wrong(options):
            # The others can do their work; the Go reference ends the whole process here.
            logger.error("controller cannot start", controller=manifest.name, error=fault)
            left_out(manifest.name, fault)
        else:
            yield manifest, manifest.build(context, options)
