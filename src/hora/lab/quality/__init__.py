"""`hora lab quality`: does the model get worse with more workers, and which remedy helps?

- ``factors``  what is changed against one worker, one thing at a time
- ``trials``   the runs of all of it: workers, real or emulated, and seeds
- ``curves``   what a run learned, epoch by epoch, and by when
- ``spread``   means over seeds, and differences that are more than chance
- ``rows``     outcomes to the table
- ``verdict``  what it says, in words
- ``measure``  the experiment
- ``conduct``  how trials are run and told of, here and in sweeps
- ``show``     the table as it is printed
"""
