"""The machine set controller: keeps the desired number of machines of each MachineSet."""
