"""How much is logged, to look at and to change: `/debug/flags/v`.

A PUT with a number sets it; nothing else is accepted. Counterpart: k8s.io/apiserver,
server/routes (debug flags).
"""

from __future__ import annotations

from ccm.base import log
from ccm.base.digits import parse_digits
from ccm.serving.http import Handler, Request, Response, text

_LONGEST = 32


async def index(_request: Request) -> Response:
    """What can be changed, and how it stands."""
    return text(f"v={log.verbosity()}\n")


async def change(request: Request) -> Response:
    """Set the verbosity to the number in the body."""
    if request.method != "PUT":
        return text(f'unrecognized http method "{request.method}"\n', 406)
    body = (await request.read())[:_LONGEST].decode(errors="replace").strip()
    level = parse_digits(body)
    if level is None:
        return text(f'failed to set verbosity: "{body}" is no number from 0 on\n', 400)
    before = log.verbosity()
    log.set_verbosity(level)
    log.logger("serving").info(
        "verbosity is changed",
        user=request.user,
        client=request.caller.address,
        before=before,
        after=level,
    )
    return text(f"successfully set klog.logging.verbosity to {level}\n")


PAGES: dict[str, Handler] = {"/debug/flags": index, "/debug/flags/v": change}
"""What to serve, by path."""
