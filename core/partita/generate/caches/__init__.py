"""What is done to the graphs of decoders, so that devices keep their caches of keys and values."""
