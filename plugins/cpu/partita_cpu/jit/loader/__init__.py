"""Object files loaded into the process: sections, relocations, instruction caches."""
