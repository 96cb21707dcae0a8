"""How near to the right answer a result has to be."""
