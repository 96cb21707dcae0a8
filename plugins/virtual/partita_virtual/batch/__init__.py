"""Device BATCH: requests that come at the same time become one run."""
