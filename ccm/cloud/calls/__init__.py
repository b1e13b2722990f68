"""The daemon's calls to a provider: limits, metrics and verified responses for every call."""
