"""Clouds: one package each, found through the entry-point group `ccm.providers`.

A provider may import `ccm.base`, `ccm.model` and `ccm.cloud` (the SDK), and one HTTP
library in its `client`. It never imports the daemon, the API-server client, or
another provider; and nothing in `ccm` imports a provider by name: the daemon finds
the chosen one through its entry point.

A small provider is one file. When it grows it becomes the fixed set of modules:
`client` (wire, paging, error table), `config`, `instances`, `balancers`, `routes`,
`machines`, `annotations`.
"""
