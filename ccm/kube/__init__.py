"""L2: the API-server client; the only code that speaks to the API server.

From the bottom up: `config` and `credentials` say where the server is and who we are;
`connections` are kept, and carry one request each at a time; `transport` sends bytes (TLS,
retries, metrics); `client` turns bytes into typed objects, one `Client` per controller with its
own rate limit; `informer` keeps a copy of a kind; `workqueue` holds keys;
`leader` elects; `events` tells people what happened.

What may enter: HTTP, JSON, Kubernetes' API conventions. What must never: a word of any
cloud, a rule of any controller, a command-line flag.
"""
