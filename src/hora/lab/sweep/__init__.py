"""`hora lab sweep`: search batch size, learning rate, weight decay, optimizer, epochs or any other option.

- ``space``    what may be chosen: a grid of values, or ranges
- ``search``   which point is next: all of a grid, or what TPE proposes (optuna)
- ``limits``   the batches that do not fit into memory, once one did not
- ``measure``  the experiment: a row a point, whatever comes of it
- ``show``     the table, as competition teams keep it
"""
