"""The cloud node lifecycle controller: deletes vanished nodes, taints shut-down ones.

Counterpart of the `cloud-node-lifecycle-controller` of the Go cloud-provider library. The
truth table lies in `plan`: nothing else in the project decides that a Node is deleted.
"""
