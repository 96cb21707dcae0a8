"""The protocol over HTTP: routes, JSON and binary bodies, limits of what clients may send."""
