"""The devices that are there: their names, the plugins that bring them, what is set for them."""
