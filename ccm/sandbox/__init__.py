"""Try the daemon with no cluster and no cloud account.

Here lives everything that stands in for a cluster on one machine, beside the in-memory API
server of `ccm.testing`: control of a real kube-apiserver and etcd (`realserver`), simulated
kubelets (`kubelet`), and the life of Pods (`podlife`).

What may enter: code that listens on loopback, starts and stops processes, and
keeps its state in a folder the caller names. It may use every layer below it.

What must never enter: anything the daemon needs in production. No other layer
but the command line imports this package, and nothing here listens on an
address other than loopback.
"""
