"""`/configz`: the settings in effect, as the reference's API shows them.

Every field is there, also with its default, under the names of
`CloudControllerManagerConfiguration`; durations are written as Go does.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from ccm.app.options import FLAGS, Options, config, migration
from ccm.base import redact
from ccm.base.durations import format_duration
from ccm.serving.http import JSON, Handler, Request, Response

_GROUP = config.GROUP_VERSION.partition("/")[0]


def document(options: Options) -> dict[str, Any]:
    """The whole answer."""
    found: dict[str, Any] = {"kind": config.KIND, "apiVersion": config.GROUP_VERSION}
    for path in config.UNUSED:
        config.put(found, path, "")
    config.put(found, "Generic.Port", 0)
    config.put(found, "Generic.Address", "0.0.0.0")  # noqa: S104 - a leftover that nobody reads
    for path, name in config.FIELDS.items():
        config.put(
            found, path, _plain(options.get(name), is_list=FLAGS[name].kind.join is not None)
        )
    plan = options.leader_migration
    if plan is not None:
        config.put(found, config.MIGRATION, migration.write(plan))
    return {_GROUP: found}


def page(options: Options) -> Handler:
    """The page with the settings in effect."""

    async def answer(_request: Request) -> Response:
        return Response(body=json.dumps(document(options)).encode(), content_type=JSON)

    return answer


def _plain(value: Any, *, is_list: bool) -> Any:
    if isinstance(value, timedelta):
        return format_duration(value)
    if is_list and isinstance(value, tuple):
        return [_plain(one, is_list=False) for one in value] or None
    if isinstance(value, bool | int | float) or value is None:
        return value
    return redact.words(str(value))
