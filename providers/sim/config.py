"""The cloud config of the simulated cloud, a YAML mapping; see `kube-ccm providers sim`."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlsplit

from ccm import cloud
from ccm.base.credentials import header_value


def parse_url(text: str) -> str:
    """The text without a slash at the end; ValueError if it is no address of an HTTP server."""
    parts = urlsplit(text)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
        raise ValueError(text)
    return text.rstrip("/")


def url_of(environ: Mapping[str, str]) -> str:
    """Return the address that `SIM_URL` has, where no cloud config says it. Raises ConfigError."""
    text = environ.get("SIM_URL", "")
    try:
        return parse_url(text)
    except ValueError:
        raise cloud.ConfigError(
            f"SIM_URL is {text!r}; it must look like http://host:port, as `python -m "
            "providers.sim` prints it"
        ) from None


class Config(cloud.Settings, frozen=True, kw_only=True):
    """A valid configuration."""

    url: Annotated[
        str,
        cloud.setting(
            "Where the API is, as `python -m providers.sim` prints it.",
            parse=parse_url,
            expects="look like http://host:port",
        ),
    ]
    token: Annotated[
        str,
        cloud.setting(
            "The bearer token, printed with the URL.",
            secret=True,
            file="token_file",
            parse=header_value,
        ),
    ]
    # Half the daemon's deadline for one question.
    timeout: Annotated[
        timedelta, cloud.setting("For one request, from connecting to the last byte.")
    ] = timedelta(seconds=30)
    connect_timeout: Annotated[timedelta, cloud.setting("For getting a connection.")] = timedelta(
        seconds=5
    )
