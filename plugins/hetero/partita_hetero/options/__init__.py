"""What applications set on HETERO: pins, sizes, names of properties, options of commands."""
