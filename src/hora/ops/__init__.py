"""What the collectives are, told once for all frameworks.

``table`` is the list of them, ``document`` writes their docstrings, ``resolve`` works out what a caller's arguments
mean, ``objects`` turns Python objects into bytes and back. A front-end adds only its tensors.
"""
