"""L0: tools that know neither Kubernetes nor clouds.

Each module could be a library of its own: clocks, back-off arithmetic, supervised tasks, waits with
a deadline, rate limiters, durations as text, logging, metrics, feature gates. Exactly one of these
modules imports a given third-party package. No module may use a term of Kubernetes or of a cloud,
and none reads a flag.
"""
