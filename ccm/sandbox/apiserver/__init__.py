"""A small, honest Kubernetes API server for trying things out without a cluster.

It serves the kinds that a cloud-controller-manager meets, with the semantics that
clients rely on: optimistic locking, watches with history and expiry, bookmarks and
watch-lists, the patch formats with their merge keys, status sub-resources, finalizers,
paging, selectors, strict field validation, discovery, OpenAPI and tables. What it
does not have: managed fields, authorization (everyone who may enter may do
everything), admission beyond defaults, garbage collection by owner, graceful pod
deletion, protobuf answers.

    kinds, schema, types_*, descriptions   what is served, as tables
    scalars                                single values and their stored form
    store, journal                         revisions, history, the file on disk
    decode, protobuf                       from bytes to objects
    patches, jsonpatch, admit, validate    from a request's object to a stored one
    services, service_rules, cluster_ips,  the same for Services: defaults, addresses and
    ledger, validate_service, text_rules   node ports, their rules
    api, listing, deletion                 the verbs
    query, routes, selectors               their options and targets
    render, tables, watch                  answers and streams
    discovery, openapi                     what the server says about itself
    server                                 HTTP; nothing else here knows about it

Nothing outside the sandbox and tests may import it.
"""
