"""Tables of annotations, settings and errors in the folders of the vendors' providers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ccm.cloud.errors import CODES, POLICY
from ccm.cloud.settings import markdown
from providers.hcloud import config as hcloud
from providers.hcloud.service_annotations import table as hcloud_table
from providers.openstack import config as openstack
from providers.openstack.service_annotations import table as openstack_table
from providers.stackit import config as stackit
from providers.stackit import refusals
from providers.stackit.service_annotations import table as stackit_table
from tests.generated import GENERATED, ROOT


def files() -> Iterator[tuple[Path, str]]:
    """Yield path and content of each file."""
    variables = f"## Environment\n\n{markdown(stackit.Variables)}"
    settings = f"## Cloud config\n\n{markdown(stackit.Config)}\n\n{variables}"
    more = f"## Environment\n\n{markdown(openstack.Variables)}"
    settings_of_openstack = f"## Cloud config\n\n{markdown(openstack.Config)}\n\n{more}"
    texts = {
        "hcloud/ANNOTATIONS.md": ("Service annotations of the Hetzner Cloud", hcloud_table()),
        "hcloud/SETTINGS.md": ("Settings of the Hetzner Cloud", markdown(hcloud.Config)),
        "openstack/ANNOTATIONS.md": ("Service annotations of OpenStack", openstack_table()),
        "openstack/SETTINGS.md": ("Settings of OpenStack", settings_of_openstack),
        "stackit/ANNOTATIONS.md": ("Service annotations of STACKIT", stackit_table()),
        "stackit/SETTINGS.md": ("Settings of STACKIT", settings),
        "stackit/ERRORS.md": ("Errors of STACKIT", _errors()),
    }
    for name, (title, text) in texts.items():
        yield ROOT / "providers" / name, f"# {title}\n\n{GENERATED}.\n\n{text}\n"


def _errors() -> str:
    rows = [
        "| response | meaning | code | node, Service | machine |",
        "| --- | --- | --- | --- | --- |",
    ]
    for row in refusals.TABLE:
        code = CODES[row.kind].name
        shown = code if row.kind.__name__ == code else f"{code} (`{row.kind.__name__}`)"
        rows.append(
            f"| {row.response} | {row.meaning} | {shown} | {POLICY[row.kind].value} | "
            f"{row.machine or refusals.machine_retry(row.kind)} |"
        )
    text = "\n".join(rows)
    return (
        "Responses of the APIs, the code in a machine's `lastOperation.errorCode`, and when\n"
        "the daemon retries, for a node or Service and for the creation of a machine.\n"
        '"back off" starts with seconds, "back off long" with half a minute; "slow" = every ten\n'
        "minutes and on each change.\n\n"
        f"{text}"
    )
