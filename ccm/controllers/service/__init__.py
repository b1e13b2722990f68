"""The service controller: maintains a load balancer for each Service that asks for one.

Counterpart of the `service-lb-controller` of the Go cloud-provider library, with the same
finalizer, status, events and provider interface. This controller makes fewer calls and writes,
and restores finalizers and statuses that other clients removed. `plan` makes every decision and
`balancer` executes it for one Service. `members` selects the nodes behind the load balancers.
`listing` reads all load balancers of the cloud at once, which saves ensure calls after a start.
"""
