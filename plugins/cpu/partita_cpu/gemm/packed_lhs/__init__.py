"""Matrix products on AMX whose left side is packed as tiles, once for all products that read it.

A tile is 16 rows of 32 bfloat16, with its further planes behind it. It is contiguous, so that
loading it neither crosses pages nor conflicts with other rows in a cache set. Behind the tiles, one
number per tile says how large its elements are.
"""
