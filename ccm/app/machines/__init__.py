"""The commands `machine-controller` and `machine-controller-manager`: machines without the rest.

They run the daemon with controllers of machines alone, under a Lease of their own with the name
that the Go programs give it, so that each of these can be exchanged for one of them, and back. Here
stands what differs: spellings and defaults of flags, and the port.
"""
