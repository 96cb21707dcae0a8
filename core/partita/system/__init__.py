"""Facilities of the machine and the operating system: processors, mapped files, threads."""
