"""A world for each test that asks for one."""

from tests.unit.controllers.machines import world

__all__ = ["world"]
