"""The command line: ``partita COMMAND``, with the commands of plugins among them."""
