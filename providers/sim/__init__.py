"""The simulated cloud and the provider that talks to it."""
