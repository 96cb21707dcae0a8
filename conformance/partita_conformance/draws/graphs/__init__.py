"""Random models of several operators: what passes of graph compilers take for one."""
