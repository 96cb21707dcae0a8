"""From a placement to something that runs: submodels compiled, transfers planned."""
