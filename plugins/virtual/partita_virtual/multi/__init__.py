"""Device MULTI: requests over devices, each on one that is free."""
