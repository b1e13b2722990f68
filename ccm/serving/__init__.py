"""L2: the daemon's HTTPS servers, with authentication and authorization of callers.

From the bottom up:

* `minting` makes certificates, in a process of its own; the only module here that imports
  `cryptography`.
* `policy` defines the accepted TLS versions, cipher suites and groups.
* `tls` loads and reloads certificates and builds TLS contexts.
* `acceptor` opens the port and limits the connections.
* `http` parses requests.
* `ttl_cache` caches answers of the API server about callers.
* `authentication`, `handler_chain` (authorization), `health` and `admission` handle requests.

This package knows HTTP, TLS, callers and their rights. It never imports the client of the API
server or any cloud; the application passes such parts in behind protocols.
"""
