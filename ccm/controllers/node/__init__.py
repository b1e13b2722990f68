"""The cloud node controller: initialises new nodes, keeps addresses and labels up to date.

Counterpart of the `cloud-node-controller` of the Go cloud-provider library, with the same result
but fewer and safer writes. `plan` makes every decision. `controller` has the queue and the periodic
pass, and sends the requests.
"""
