"""Stateful fake of OpenStack, for tests and for the sandbox.

One address serves all services, each below its own path; the catalogue has their URLs. `state` has
settings, content and wire format, and `server` the routing. Handlers: `identity`, `compute` with
`creation`, `network` with `floating`, and `balancers`. The provider imports none of these.
"""
