"""Test tools for this project and for provider authors, and the in-memory API server.

Allowed here: clocks, fakes and contract suites that can test a provider outside this project,
and the API server of the sandbox and of `kube-ccm plan`. Not allowed: anything that the daemon
imports.
"""
