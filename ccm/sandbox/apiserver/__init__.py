"""A small, honest Kubernetes API server for trying things out without a cluster.

It serves the kinds that a cloud-controller-manager meets, and custom resources, with the
semantics that clients rely on: optimistic locking, watches with history and expiry,
bookmarks and watch-lists, the patch formats with their merge keys, status and scale
sub-resources, finalizers, paging, selectors, strict field validation, discovery, OpenAPI
and tables. What it does not have: managed fields, authorization (everyone who may enter
may do everything), admission beyond defaults, garbage collection by owner, protobuf answers,
descriptions of fields, CEL rules.

    kinds                            what is served: a table, one row per kind
    schema, scalars, limits          shapes: checked, completed, brought into stored form
    columns, paths                   cells of tables
    builtin, services, allocate      what is special about single kinds
    evictions                        how Pods end
    extensions                       rows from CustomResourceDefinitions
    store, journal                   revisions, history, the file on disk
    decode, protobuf                 from bytes to objects; typed clients send protobuf unasked
    patches                          from a patch to an object
    admit, validate                  from a request's object to a stored one
    api, scale, listing              the verbs
    query, routes, selectors         their options and targets
    render, watch                    answers and streams
    discovery, openapi               what the server says about itself
    server                           HTTP; nothing else here knows about it

Nothing outside the sandbox and tests may import it.
"""
