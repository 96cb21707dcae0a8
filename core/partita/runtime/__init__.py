"""What applications hold: compiled models, requests, queues, and the registry of devices."""
