"""Text to tokens and back: tokenizers, chat templates, streaming of tokens."""
