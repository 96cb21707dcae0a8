"""Passes that choose which results are written as AMX tiles for the products that read them."""
