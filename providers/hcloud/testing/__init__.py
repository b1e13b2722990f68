"""A stateful fake of the Hetzner Cloud API, for tests and for the sandbox.

It speaks the shapes of the vendor's public OpenAPI document (https://docs.hetzner.cloud), keeps the
limits of the real thing, and does what takes time by actions, during which a resource is locked.

`state` says how it behaves, what it holds and how that looks on the wire, `catalog` what can be
ordered, `servers`, `balancers`, `networks` and `extras` what its calls do, and `server` has the
table of them and how it is reached. The provider imports none of it.
"""
