"""`hora lab elastic`: what lost workers cost a training, and whether they change what it learns.

- ``kills``    who is killed when: a plan from a seed, and who carries it out
- ``measure``  the experiment: an undisturbed run, runs with kills, and a row of each
- ``show``     the table and the verdict

All runs train the same logical workers, so those that were disturbed must end with the same bits.
"""
