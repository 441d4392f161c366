"""`hora bench`: Hora and its peers side by side, in one run.

Benchmarks of communication libraries mislead in three ways: the contenders run at different times on a machine whose
speed drifts, the fastest rank is reported, or one lucky run is. Here all contenders live in the same processes and take
turns, a round each, so that drift hits all of them; a call is as slow as its slowest rank; and what is shown is the
median over rounds with its spread. Before anything is timed, every contender must produce the right sum.

- ``plan``         what to measure, and the results, as typed JSON
- ``contenders``   Hora, Hora on shared memory, Gloo, Open MPI, and memcpy as the limit, behind one small interface
- ``rounds``       interleaved timing on the workers
- ``worker``       ``python -m hora.bench.worker``, what each process runs
- ``drive``        starts the workers and merges what they measured
- ``launching``    import time and start-up time, measured from outside
- ``models``       the networks of `hora bench train`; ``jax_models`` and ``keras_models`` the same in those
- ``train``        training with each contender, on the workers; ``train_torch`` and so on how each framework does it
- ``link``         what the link between hosts carries, and the floor that it sets
- ``train_report`` what it found, as rows and tables
- ``resnet50``     the shapes of ResNet-50's gradients
- ``figures``      numbers as people read them
- ``show``         the tables
"""
