"""A Kubernetes cloud-controller-manager and its provider SDK. Version only; imports nothing."""

__version__ = "0.1.0"
