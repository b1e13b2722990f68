"""From a request path to what it is about; pure."""

from __future__ import annotations

from ccm.sandbox.apiserver import api, errors, kinds


def parse(path: str) -> api.Target | None:
    """The target of an API path; None if the path is not below a served group version.

    Raises:
        ApiError: 404, a served group version without such a resource.
    """
    group, version, rest = _split(path)
    if not any(kind.group == group and kind.version == version for kind in kinds.KINDS):
        return None
    steps = [step for step in rest if step]
    if not steps or len(steps) > 5:
        return None
    namespace = ""
    if steps[0] == "namespaces" and len(steps) > 2 and steps[2] not in ("status", "finalize"):
        namespace = steps[1]
        steps = steps[2:]
    plural, name, subresource = [*steps, "", ""][:3]
    kind = kinds.BY_PATH.get((group, version, plural))
    if kind is None or len(steps) > 3 or (namespace and not kind.namespaced):
        raise errors.no_such_resource()
    if kind.namespaced and name and not namespace:
        raise errors.no_such_resource()
    if subresource and not (subresource == "status" and kind.status):
        raise errors.no_such_resource()
    return api.Target(kind=kind, namespace=namespace, name=name, subresource=subresource)


def _split(path: str) -> tuple[str, str, list[str]]:
    steps = path.strip("/").split("/")
    if steps[0] == "api" and len(steps) > 1:
        return "", steps[1], steps[2:]
    if steps[0] == "apis" and len(steps) > 2:
        return steps[1], steps[2], steps[3:]
    return "-", "", []
