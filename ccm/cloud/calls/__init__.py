"""How the daemon calls a provider: one handle, under which every call is protected and checked."""
