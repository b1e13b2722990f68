"""L2: client of the API server; only this package communicates with the API server.

From the bottom up:

- `config`, `credentials`, `exec_plugin`, `serviceaccount`: address of the server, and identity
- `connections`: pool of persistent connections, each with one request at a time
- `transport`: requests and responses as bytes, with TLS, retries and metrics
- `resources` and `decode`: kinds of objects, and their decoding
- `client`: typed objects; one `Client` per controller, with its own rate limit
- `informer`: cache of all objects of a kind
- `workqueue`: queue of keys for workers
- `leader`: leader election
- `events`: event recorder
- `portforward`: port-forward to a Pod

The package knows HTTP, JSON and the API conventions of Kubernetes. It must not contain a term of a
cloud, a rule of a controller, or a command-line flag.
"""
