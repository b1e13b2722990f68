"""The cloud node controller: initialises new nodes, keeps addresses and labels in step.

Counterpart of the `cloud-node-controller` of the Go cloud-provider library: same objects
in the end, fewer and safer writes on the way. `plan` has every decision, `controller`
the queue, the periodic pass and the requests.
"""
