"""The error tree of persistence; behind each class stands what the caller does next.

```text
PersistenceError
  ├─ NotInitialized, Closed          a mistake of ours: never ask before and after
  ├─ BackendDead                     a person has to act; the daemon says so and ends
  │  └─ Unreachable                  nothing answers now; a new provider may be tried later
  ├─ UnknownInstance                 a mistake of ours: ask `instances()`
  ├─ BackendUnavailable              try again later; the outcome of a write is unknown
  ├─ InvalidObject, ObjectTooLarge   never try again with the same object
  ├─ SensitiveObjectRefused          goes to the secret store, or without its secret
  ├─ CorruptObject                   a person has to look; the bytes are kept as they are
  ├─ VersionConflict                 read again, then decide again
  └─ Fenced                          another leads: change nothing any more
```

No message holds anything of an object's content, and none holds a credential.
"""

from __future__ import annotations


class PersistenceError(Exception):
    """Root of all that a persistence provider raises."""


class NotInitialized(PersistenceError):
    """Asked before `initialize`."""


class Closed(PersistenceError):
    """Asked after `close`."""


class BackendDead(PersistenceError):
    """`initialize` failed, or the store belongs to another cluster: nothing will work."""


class Unreachable(BackendDead):
    """`initialize` failed because no instance could be used just then."""


class UnknownInstance(PersistenceError):
    """No instance of that name is configured."""


class BackendUnavailable(PersistenceError):
    """The store did not do it now: unreachable, full, too slow. A retry is safe."""


class InvalidObject(PersistenceError):
    """What was given is no object that can be stored, or no key."""


class SensitiveObjectRefused(PersistenceError):
    """It is a Secret, or holds a credential: a plain store does not take it."""


class ObjectTooLarge(PersistenceError):
    """Its canonical JSON is longer than the limit."""


class CorruptObject(PersistenceError):
    """What is stored there is damaged, or belongs elsewhere."""


class VersionConflict(PersistenceError):
    """Somebody else wrote it meanwhile, or conditions cannot be relied on here."""


class Fenced(PersistenceError):
    """A newer leader has written: this one is over."""
