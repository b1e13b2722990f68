"""Stateful fake of the Hetzner Cloud API, for tests and for the sandbox.

Requests and responses follow the vendor's public OpenAPI document (https://docs.hetzner.cloud).
The fake has the limits of the real API, and actions that take time and lock resources.

`state` has settings, content and wire format, `catalog` the offered types, `servers`, `balancers`,
`networks` and `extras` the handlers, and `server` the routing. `robot` is a fake of the Robot web
service. The provider imports none of these.
"""
