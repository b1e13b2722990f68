"""An in-memory Kubernetes API server: for the sandbox, for `kube-ccm plan` and for tests.

The server has custom resources and the built-in kinds that a cloud-controller-manager uses, with
the semantics that clients rely on:

- optimistic concurrency, finalizers, evictions, status and scale subresources;
- watches with history and expiry, bookmarks and watch-lists;
- all patch formats with their merge keys;
- paging, selectors, discovery and tables.

Managed fields, authorization, garbage collection by owner, OpenAPI schemas and CEL rules are
missing. Objects are validated by their schemas only, and error messages differ from
kube-apiserver's.

    kinds       served kinds, built-in and custom; kinds.toml has one row for each
    schema      types of objects: types.txt, or the schema of a CustomResourceDefinition
    protobuf    reads the request bodies of Go's typed clients, kubectl among them
    patches     merge patch, strategic merge patch, JSON patch
    store       revisions, history, and the file on disk
    services    defaults, cluster IPs and node ports of Services
    pods        grace periods and evictions of Pods
    api         the verbs
    tables      cells of the tables of `kubectl get`
    listing     lists and watches, their options, selectors and renderers
    requests    paths, verbs and discovery: from a request to its response
    transport   in-process requests, for clients of the same process
    server      HTTP
"""
