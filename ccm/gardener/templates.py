"""What sets and deployments have in common: a template of machines, and a selector that fits it.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from ccm.gardener import names
from ccm.gardener.types import MachineTemplateSpec
from ccm.model.selectors import BadSelectorError, LabelSelector


def labels_of(template: MachineTemplateSpec) -> Mapping[str, str]:
    """Labels of the machines."""
    return texts((template.metadata or {}).get("labels"))


def annotations_of(template: MachineTemplateSpec) -> Mapping[str, str]:
    """Annotations of the machines."""
    return texts((template.metadata or {}).get("annotations"))


def texts(found: Any) -> Mapping[str, str]:
    """A map of texts out of what nobody checks."""
    if not isinstance(found, Mapping):
        return {}
    return {str(key): str(value) for key, value in found.items() if value is not None}


def faults(
    *, replicas: int, selector: LabelSelector | None, template: MachineTemplateSpec
) -> Iterator[str]:
    """What of a set or deployment makes it impossible to work with, one sentence each.

    A selector that the template's own labels do not satisfy would have machines made without
    end, none of which counts; an empty one would take over every machine there is.
    """
    if replicas < 0:
        yield f"spec.replicas is {replicas}; it has to be 0 or more"
    yield from _selector_faults(selector, labels_of(template))
    made_of = template.spec.class_
    if made_of.kind != names.CLASS_KIND:
        yield f"spec.template.spec.class.kind is {made_of.kind!r}; it has to be {names.CLASS_KIND}"
    if not made_of.name:
        yield f"spec.template.spec.class.name is empty; say which {names.CLASS_KIND}"


def _selector_faults(selector: LabelSelector | None, found: Mapping[str, str]) -> Iterator[str]:
    if selector is None or not (selector.match_labels or selector.match_expressions):
        yield "spec.selector selects everything; name the labels of the template"
        return
    try:
        terms = selector.requirements()
    except BadSelectorError as error:
        yield f"spec.selector: {error}"
        return
    missing = [one.key for one in terms if not one.matches(found)]
    if missing:
        yield (
            f"spec.selector asks for {', '.join(sorted(missing))} as spec.template.metadata.labels "
            "do not have it; make them agree"
        )
