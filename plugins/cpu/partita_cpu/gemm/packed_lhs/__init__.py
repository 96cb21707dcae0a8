"""Products of matrices on AMX whose left side is laid out as tiles, once for all who read it.

A tile is 16 rows times 32 numbers in bfloat16, with its further parts behind it. It
lies in one piece, so that loading it neither crosses pages nor meets other rows in the same sets
of the cache. Behind the tiles one number for each says how large its elements are.
"""
