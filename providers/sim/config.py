"""The cloud config of the simulated cloud: a YAML mapping.

```yaml
url: http://127.0.0.1:40123   # required; printed by `python -m providers.sim`
token: secret                 # the bearer token, printed with the URL
token_file: /etc/sim/token    # a file with the token instead; followed when it changes
timeout: 30s                  # one request, from connecting to the last byte; default 30s
connect_timeout: 5s           # getting a connection; default 5s
```
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from urllib.parse import urlsplit

from ccm import cloud

TIMEOUT = timedelta(seconds=30)
"""Default of `timeout`: half the daemon's deadline for one question."""

CONNECT_TIMEOUT = timedelta(seconds=5)
"""Default of `connect_timeout`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A valid configuration.

    Attributes:
        url: where the API is, without a slash at the end.
        token: the bearer token; never shown.
        timeout: for one request, from connecting to the last byte.
        connect_timeout: for getting a connection.
    """

    url: str
    token: str = field(repr=False)
    timeout: timedelta = TIMEOUT
    connect_timeout: timedelta = CONNECT_TIMEOUT


def read(context: cloud.Context) -> Config:
    """Read the cloud config.

    Raises:
        ConfigError: it is no YAML mapping, or fields are wrong; every fault is named.
    """
    fields = context.yaml()
    url = fields.text("url", required=True)
    if url and not _is_http(url):
        fields.faults.append(f"url is {url!r}; it must look like http://host:port")
    found = Config(
        url=url.rstrip("/"),
        token=_token(context, fields),
        timeout=fields.duration("timeout", TIMEOUT),
        connect_timeout=fields.duration("connect_timeout", CONNECT_TIMEOUT),
    )
    fields.done()
    return found


def _token(context: cloud.Context, fields: cloud.Fields) -> str:
    token, file = fields.text("token"), fields.text("token_file")
    if bool(token) == bool(file):
        wrong = "given beside token_file" if token else "missing, and so is token_file"
        fields.faults.append(f"token is {wrong}; one of the two is required")
    elif file:
        try:
            return context.secret_file(file)
        except cloud.ConfigError as error:
            fields.faults.extend(f"token_file: {fault}" for fault in error.faults)
    return token


def _is_http(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False
