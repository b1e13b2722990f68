"""L4: Kubermatic's machine objects, group `cluster.k8s.io`: names, documents, CRDs and codec.

Only `ccm.app` selects this API group. The machine controllers use only the hub types and the codec.
"""
