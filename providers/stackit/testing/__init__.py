"""A stateful fake of STACKIT's IaaS, load balancer and token APIs, for tests and for the sandbox.

It speaks the shapes of the vendor's public OpenAPI documents (repository
stackitcloud/stackit-api-specifications), keeps the limits of the real thing, and lets servers and
load balancers take their time.

`state` says how it behaves and what it holds, `servers`, `balancers` and `extras` what its
calls do, `tokens` who may ask, `api` is the table of calls, and `server` how it is reached. The
provider imports none of it.
"""
