"""Device HETERO: one model over several devices."""
