"""Cloud providers: one package each, registered in the entry-point group `ccm.providers`.

A provider may import `ccm.base`, `ccm.model`, `ccm.cloud` (the SDK) and, in its `client`, one
HTTP library. A provider never imports the daemon, the API-server client or another provider.
Nothing in `ccm` imports a provider by name: the daemon loads the provider through its entry point.

A small provider is one file. A larger one has a fixed set of modules: `client` (wire types,
paging, error table), `config`, `instances`, `balancers`, `routes`, `machines`, `annotations`.
"""
