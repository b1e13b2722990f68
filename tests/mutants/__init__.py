"""Hand-written mutants of the guards that keep objects from being deleted."""
