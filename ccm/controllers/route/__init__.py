"""The route controller: maintains cloud routes to the Pod ranges of each node.

Counterpart of the `route` controller of the Go cloud-provider library. `plan` compares the nodes
with the cloud's routes and plans changes. `controller` schedules the comparisons, and `calls` sends
the planned calls to the cloud.
"""
