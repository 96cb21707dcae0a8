"""Files on disk: exported models, the model cache, and the cache folder."""
