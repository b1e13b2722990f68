"""Optional storage for data that should survive a restart of the daemon.

Storage holds copies only: the API server and the cloud stay the only sources of truth, and the
daemon works without any storage. This package contains the interface of a store, the code that all
stores share, and one module per backend. Controller terms, the client of the API server, and
decisions based on a stored object alone do not belong here. Stores are imported only with
`--persistence-config` or `--journal`, and a third-party package only if its backend is configured.
`README.md` is the guide.

    interface   interface of a provider, and its values
    errors      error classes
    objects     validation, canonical bytes and names of stored objects
    envelope    metadata stored with each object
    engine      provider on top of plain stores
    store       interface of a store, and functions that stores share
    local       private folders, mounted files
    memory, sqlite, kubestore, s3, postgres     stores
    journal     journal of cloud resources
    secrets, keyring, kubesecrets               storage of secrets
    registry    entry points
"""
