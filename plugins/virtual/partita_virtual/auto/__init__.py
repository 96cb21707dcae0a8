"""Device AUTO: the device that takes a model and computes it fastest."""
