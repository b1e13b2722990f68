"""Stateful fake of OpenStack, for tests and for the sandbox.

One address serves all services, each below its own path; the catalogue has their URLs. `state` has
settings, content and wire format, `identity`, `compute` and `network` the handlers, and `server`
the routing. The provider imports none of these.
"""
