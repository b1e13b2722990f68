"""L2: client of the API server; only this package communicates with the API server.

From the bottom up:

- `config` and `credentials`: address of the server, and identity
- `connections`: kept connections, each with one request at a time
- `transport`: bytes, with TLS, retries and metrics
- `client`: typed objects; one `Client` per controller, with its own rate limit
- `informer`: cache of a kind
- `workqueue`: keys for workers
- `leader`: leader election
- `events`: event recorder

The package knows HTTP, JSON and the API conventions of Kubernetes. The package must not contain a
term of a cloud, a rule of a controller, or a command-line flag.
"""
