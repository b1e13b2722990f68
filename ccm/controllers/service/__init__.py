"""The service controller: a load balancer for each Service that wants one.

Counterpart of the `service-lb-controller` of the Go cloud-provider library: same finalizer,
status, events and calls to the provider; fewer calls and writes on the way, and repair of
what others take away. `plan` has every decision, `balancer` carries it out for one Service,
`members` knows which nodes may be members, and `listing` what the cloud holds, which spares
needless work after a start.
"""
