"""`hora timeline`: reads what the workers recorded, puts it on one clock, and says in words where the time went.

- ``read``     one file, of Hora or of Horovod, whole or cut short, as operations
- ``clock``    what to add to each rank's times, and how wrong that can be
- ``merge``    all ranks in one file that Perfetto opens
- ``sweep``    one rank's time, instant by instant: moving, copying, queueing, waiting for whom, or nothing in flight
- ``measure``  the numbers, which are declared in ``numbers``
- ``verdict``  what they mean, what to change and what that would gain
- ``show``     the report on a terminal
"""
