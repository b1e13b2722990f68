"""The commands `machine-controller` and `machine-controller-manager`.

They run the daemon with machine controllers only. Each command has a Lease of its own, whose name
is that of Gardener's program of the same name. So one program can replace the other. This package
defines how the commands differ from the daemon: names and defaults of flags, and the HTTP server.
"""
