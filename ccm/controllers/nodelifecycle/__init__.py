"""The cloud node lifecycle controller: deletes or taints nodes.

The controller deletes Nodes whose instances no longer exist, and taints Nodes whose instances are
shut down. Counterpart of the `cloud-node-lifecycle-controller` of the Go cloud-provider library.
Only `plan.decide` decides whether to delete a Node.
"""
