"""Small models, described by one choice for each trait in which models differ."""
