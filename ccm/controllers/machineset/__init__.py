"""The machine set controller: as many machines as a MachineSet wants, made of its template."""
