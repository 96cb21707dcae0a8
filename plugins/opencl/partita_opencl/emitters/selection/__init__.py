"""Selection: elements are read from, or written to, places that indices name, or masked."""
