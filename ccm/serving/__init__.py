"""L2: what the daemon serves over HTTPS, and who may ask for it.

From the bottom up: `minting` makes certificates (in a process of its own; the only door to
cryptography), `tls` where a server's certificates come from and which versions, cipher suites and
authorities it accepts, `acceptor` opens the port and takes callers in as far as there are
connections left, `http` turns bytes into requests. Above them lie `authentication`,
`handler_chain` (who may have which page) and `health`.

What may enter: HTTP, TLS, callers and their rights. What must never: the client of the API
server or a word of any cloud; the application passes such things in behind protocols.
"""
