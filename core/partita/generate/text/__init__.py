"""Text to tokens and back: tokenizers, chat templates, text that comes token by token."""
