"""A stateful fake of STACKIT's IaaS, load balancer and token APIs, for tests and for the sandbox.

It speaks the shapes of the vendor's public OpenAPI documents (repository
stackitcloud/stackit-api-specifications), keeps the limits of the real thing, and lets servers and
load balancers take their time.

`state` says how it behaves and what it holds, `servers` and `balancers` what its calls do, `tokens`
has the service account, and `server` has the table of calls and how it is reached. The provider
imports none of it.
"""
