"""Faults put in on purpose, each with the tests that have to catch it.

Every row of the TOML files here is one fault that would harm a user: a precondition that is
missing, a comparison turned round, a retry that is lost. There is one file per room, and a row
is a table named by an ID that occurs once in all rooms:

```toml
[lifecycle-deleted-without-uid]
fault = "A node made anew under its name is deleted for the sake of the old one."
file = "ccm/controllers/nodelifecycle/controller.py"
before = 'self._api.delete(node.name, uid=node.uid)'
after = 'self._api.delete(node.name)'
tests = ["tests/...::test_a_node_made_anew_under_the_same_name_is_not_deleted[builtin]"]
```

`before` occurs exactly once in its file, so keep it short and distinctive; whoever moves or
rewrites the code ports the row, and never drops it. `tests` are node IDs that run with
`make test`, as few and as fast as possible, without a real API server and without examples
drawn by chance. Where nothing catches a fault, write the test.

`python -m tests.mutants [ID, room or pattern ...]` applies one after the other to a copy of the
tree and runs its tests there; `make soak` tries all. Each test run checks that every row is
sound, and tells where code that was moved can be found.
"""
