"""The commands `machine-controller` and `machine-controller-manager`.

They run the daemon with machine controllers only. Each command and its Lease have the name of a
Gardener program, so that either program can replace the other. This package defines how the
commands differ from the daemon: names and defaults of flags, and the HTTP server.
"""
