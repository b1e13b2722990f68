"""L2: the daemon's HTTPS servers, with authentication and authorization of callers.

From the bottom up:

* `minting` creates certificates, in a child process; the only module here that imports
  `cryptography`.
* `policy` defines the accepted TLS versions, cipher suites and groups.
* `tls` loads and reloads certificates and builds TLS contexts.
* `acceptor` opens the port and limits the number of connections.
* `http` parses requests.
* `ttl_cache` caches the results of TokenReviews and SubjectAccessReviews.
* `authentication`, `handler_chain` (authorization), `health` and `admission` handle requests.

This package knows HTTP, TLS, callers and their permissions. It imports neither the client of the
API server nor a cloud. `ccm.app` passes in functions that send reviews.
"""
