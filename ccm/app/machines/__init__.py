"""The commands `machine-controller` and `machine-controller-manager`.

They run the daemon with only the machine controllers. Each has a Lease of its own with the name
that the Go program uses, so that either program can replace the other. This package holds the
differences to the daemon: spellings and defaults of flags, and the port.
"""
