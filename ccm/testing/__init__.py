"""The in-memory API server, and tools for tests, ours and those of provider authors.

What may enter: clocks, fakes and suites that could be used outside this project to test a
provider, and the API server of the sandbox and of `kube-ccm plan`. What must never: anything that
the daemon would want to import.
"""
