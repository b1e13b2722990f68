"""L2: what the daemon serves over HTTPS, and who may ask for it.

From the bottom up: `minting` makes certificates (in a process of its own; the only door to
cryptography), `certs` says where a server's certificates come from, `tls` which versions,
cipher suites and authorities it accepts, `listener` opens the port, `acceptor` takes callers in
as far as there are `connections` left, `http` turns bytes into requests and `bodies` reads what
they carry. Above them lie who asks (`authentication`), whether they may (`authorization`) and
what they get (`health`, `slis`, `profiling`).

What may enter: HTTP, TLS, callers and their rights. What must never: the client of the API
server or a word of any cloud; the application passes such things in behind protocols.
"""
