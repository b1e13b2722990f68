"""Where the daemon may keep what has to outlive it: copies, never the truth.

The API server and the cloud stay the only truth; all works with nothing configured. What may
enter here: the interface of a store, the parts that every store shares, one module per backend.
What must never: a controller's word, the API server's client, a decision made from a stored
object alone. Nothing of this is imported unless `--persistence-config` is given; a third-party
package only by the backend that needs it. `README.md` is the guide.

    interface   what a provider offers; values
    errors      what it raises
    objects     what may be stored, its canonical bytes, its names
    envelope    what is stored around an object
    engine      a whole provider made of plain stores
    local       a thread, private folders, mounted files
    memory, file, sqlite, s3, postgres     the stores
    secrets, keyring, kubesecrets          what is secret
    manager     several instances kept as one
    registry    entry points
"""
