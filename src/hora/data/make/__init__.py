"""Generated data sets in the formats of the real ones, with something in them to learn; each says that it is generated.

The same seed gives the same bytes, however many processes make them.
"""
