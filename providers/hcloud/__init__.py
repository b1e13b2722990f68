"""Hetzner Cloud."""
