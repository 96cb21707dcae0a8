"""The accuracy budget: what keeps the outputs of a placement within it."""
