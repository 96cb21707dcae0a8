"""What is told of a running server: metrics and traces."""
