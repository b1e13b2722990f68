"""L6: what the daemon would do to a cluster and a cloud, found out without doing it.

No decision is made a second time here. The daemon's own controllers, wired as the daemon wires
them, run over a copy of the cluster in memory, and with a handle to the cloud that asks questions
and writes down changes instead of making them. So that what follows from a change is seen as well
(a deleted node leaves its load balancers and loses its routes), each is taken for done: in the
copy, and in what the cloud lists from then on. Only what `ensure_load_balancer` and
`create_machine` would answer nobody can know, so their Service and Machine go no further.

Time passes at once wherever the controllers only wait: a second denial a monitor period after the
first takes as long as the first. Each question is put to the cloud once; what it said is taken for
what it goes on saying.

    timeloop    an event loop in which waiting takes no time
    cluster     the copy, in the in-memory API server of `ccm.testing`
    cloud       the handle that makes no change
    changes     what differs afterwards, as values
    forecast    runs the controllers, and gathers all of it
    report      what was gathered, for people and programs

What it cannot know: what an ensure answers, so the status that is written then; which of several
nodes comes first where a brake lets only some through; whether a balancer is looked at before or
after a node that is initialised at the same moment, so whether it is ensured or given members; and
what a provider does by itself, outside of the daemon's calls, for which time is skipped too.

What may enter: questions. What must never enter: a decision of a controller, a write. Two walls
stand behind the copy and the handle: the transport refuses whatever is no GET, and what is
declared a change never reaches the provider.
"""
