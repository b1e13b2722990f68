"""Templates and selectors of sets and deployments."""

from __future__ import annotations

import pytest

from ccm.gardener import templates
from ccm.gardener.types import ClassSpec, MachineSpec, MachineTemplateSpec
from ccm.model.selectors import LabelSelector, Term

CLASS = ClassSpec(kind="MachineClass", name="small")
TEMPLATE = MachineTemplateSpec(
    metadata={"labels": {"name": "web"}, "annotations": {"a": 1, "b": None}},
    spec=MachineSpec(class_=CLASS),
)
SELECTOR = LabelSelector(match_labels={"name": "web"})


def said(
    replicas: int = 1,
    selector: LabelSelector | None = SELECTOR,
    template: MachineTemplateSpec = TEMPLATE,
) -> str:
    return " | ".join(templates.faults(replicas=replicas, selector=selector, template=template))


def test_what_nobody_checks_is_read_as_text() -> None:
    assert templates.labels_of(TEMPLATE) == {"name": "web"}
    assert templates.annotations_of(TEMPLATE) == {"a": "1"}
    assert templates.labels_of(MachineTemplateSpec()) == {}
    assert templates.labels_of(MachineTemplateSpec(metadata={"labels": ["no map"]})) == {}


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (said(), ""),
        (said(replicas=-1), "spec.replicas is -1"),
        (said(selector=None), "spec.selector selects everything"),
        (said(selector=LabelSelector()), "spec.selector selects everything"),
        (said(selector=LabelSelector(match_labels={"name": "api"})), "spec.selector asks for name"),
        (
            said(
                selector=LabelSelector(
                    match_expressions=[Term(key="name", operator="NotIn", values=["web"])]
                )
            ),
            "spec.selector asks for name",
        ),
        (
            said(selector=LabelSelector(match_expressions=[Term(key="name", operator="~")])),
            "spec.selector: operator '~'",
        ),
        (said(template=MachineTemplateSpec()), "spec.selector asks for name"),
        (
            said(
                template=MachineTemplateSpec(
                    metadata=TEMPLATE.metadata, spec=MachineSpec(class_=ClassSpec(name="small"))
                )
            ),
            "spec.template.spec.class.kind is ''",
        ),
        (
            said(
                template=MachineTemplateSpec(
                    metadata=TEMPLATE.metadata,
                    spec=MachineSpec(class_=ClassSpec(kind="MachineClass")),
                )
            ),
            "spec.template.spec.class.name is empty",
        ),
    ],
)
def test_what_is_wrong_is_said(found: str, expected: str) -> None:
    assert found.startswith(expected)
    assert bool(found) is bool(expected)
