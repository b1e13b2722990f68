"""L4: what a machine is, whichever objects describe it: neutral views, and plans over them.

A front (`ccm.gardener`) translates its objects into `views` and says in a `Rules` value how its
labels, annotations and finalizers are called; no such name stands in here. `creation`, `deletion`,
`joining`, `nodesync`, `orphans`, `tokens`, `userdata`, `freezing` and `statuses` decide, without a
clock, I/O or await; so does `drain`, and `draining` is what others know of it. `listing` shares the
listings of the cloud among those who ask for the same; `pauses` keeps who is left alone.
"""
