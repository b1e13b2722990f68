"""Errors of persistence, and how a caller must react to each.

```text
PersistenceError
  ├─ NotInitialized, Closed          programming error: call only between initialize and close
  ├─ BackendDead                     an operator must act; `initialize` may be retried
  ├─ UnknownInstance                 programming error: use `instances()`
  ├─ BackendUnavailable              retry later; the outcome of a write is unknown
  ├─ InvalidObject, ObjectTooLarge   never retry with the same object
  ├─ SensitiveObjectRefused          use the secret store, or remove the secret from the object
  ├─ CorruptObject                   an operator must investigate; the bytes are kept unchanged
  ├─ VersionConflict                 read again, then decide again
  └─ Fenced                          another replica leads: stop all changes
```

Messages contain neither an object's content nor credentials.
"""

from __future__ import annotations


class PersistenceError(Exception):
    """Base of all errors of a persistence provider."""


class NotInitialized(PersistenceError):
    """A method was called before `initialize`."""


class Closed(PersistenceError):
    """A method was called after `close`."""


class BackendDead(PersistenceError):
    """`initialize` failed, or the store is damaged or belongs to another cluster."""


class UnknownInstance(PersistenceError):
    """No instance of that name is configured."""


class BackendUnavailable(PersistenceError):
    """The operation failed temporarily: store unreachable, full or too slow. A retry is safe."""


class InvalidObject(PersistenceError):
    """The argument is not an object that can be stored, or not a valid key."""


class SensitiveObjectRefused(PersistenceError):
    """The object is a Secret or contains a credential; only the secret store accepts it."""


class ObjectTooLarge(PersistenceError):
    """The object exceeds the size limit of the provider or of its store."""


class CorruptObject(PersistenceError):
    """The stored object is damaged or belongs to another key."""


class VersionConflict(PersistenceError):
    """A concurrent write changed the object, or the store cannot enforce preconditions."""


class Fenced(PersistenceError):
    """A newer leader has written; this process must not write any more.

    Args:
        message: the error.
        stored_epoch: epoch of the newer leader.
    """

    def __init__(self, message: str, stored_epoch: int = 0) -> None:
        super().__init__(message)
        self.stored_epoch = stored_epoch
