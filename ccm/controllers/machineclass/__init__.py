"""The machine class controller: finalizers on classes and Secrets in use, and whether VMs can be
made of a class."""
