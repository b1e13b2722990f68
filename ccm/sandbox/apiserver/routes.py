"""From a request path to what it is about."""

from __future__ import annotations

import dataclasses

from ccm.sandbox.apiserver import errors, kinds


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """What a request is about; `name` is empty for a collection, `subresource` mostly."""

    kind: kinds.Kind
    namespace: str = ""
    name: str = ""
    subresource: str = ""

    @property
    def key(self) -> str:
        """The object's key in the store."""
        return f"{self.namespace}/{self.name}" if self.kind.namespaced else self.name


def parse(served: kinds.Registry, path: str) -> Target | None:
    """The target of an API path; None if the path is not below a served group version.

    Raises:
        ApiError: 404, a served group version without such a resource.
    """
    root, *steps = path.strip("/").split("/")
    group = steps.pop(0) if root == "apis" and steps else ""
    version = steps.pop(0) if root in ("api", "apis") and steps else ""
    steps = [step for step in steps if step]
    if not steps or len(steps) > 5 or not served.has_version(group, version):
        return None
    namespace = ""
    if steps[0] == "namespaces" and len(steps) > 2 and steps[2] not in ("status", "finalize"):
        _, namespace, *steps = steps
    plural, name, subresource = [*steps, "", ""][:3]
    kind = served.get(group, version, plural)
    if (
        kind is None
        or len(steps) > 3
        or (namespace and not kind.namespaced)
        or (name and kind.namespaced and not namespace)
        or subresource not in ("", *kind.subresources)
    ):
        text = "the server could not find the requested resource"
        raise errors.ApiError(404, "NotFound", text)
    return Target(kind=kind, namespace=namespace, name=name, subresource=subresource)
