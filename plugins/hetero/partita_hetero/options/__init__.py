"""Options of HETERO: pins, sizes, names of properties, options of commands."""
