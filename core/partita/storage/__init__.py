"""What is kept on disk: exported models, the model cache, and the folder that both lie in."""
