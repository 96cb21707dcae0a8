"""Images with channels last: the conversion of a graph, and of its ports."""
