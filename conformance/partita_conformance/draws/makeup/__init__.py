"""Small models that are described by one choice for each trait in which models may differ."""
