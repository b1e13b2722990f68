"""Stateful fake of STACKIT's IaaS, load balancer and token APIs, for tests and for the sandbox.

Requests and responses follow the vendor's public OpenAPI documents (repository
stackitcloud/stackit-api-specifications). The fake has the limits of the real APIs, and servers and
load balancers that take time.

`state` has settings and content, `servers` and `balancers` the handlers, `tokens` the service
account, and `server` the routing. The provider imports none of these.
"""
