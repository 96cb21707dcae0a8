"""Programs recorded once with symbolic sizes, and instantiated for each shape of their class."""
