"""The linker of drivers that look for one on machines that have none."""
