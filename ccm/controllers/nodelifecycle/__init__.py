"""The cloud node lifecycle controller: deletes vanished nodes, taints shut-down ones.

Counterpart of the `cloud-node-lifecycle-controller` of the Go cloud-provider library. The decision
table is in `plan`: no other part of this controller decides the deletion of a Node.
"""
