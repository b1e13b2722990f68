"""L3: what every controller is built from; knows no concrete kind.

`controller` turns watched changes into reconciles with bounded concurrency, `backoff` says
when a failed one comes back, `writer` carries changes to the API server, `lazy` watches what
is needed at times only. Controllers bring the decisions.
"""
