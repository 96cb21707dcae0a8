"""Self-contained HTML pages: one file with scripts, styles and data, which needs no network."""
