"""Predictions: step time, speed and efficiency of a job on more workers than it has run on.

- ``network``      how long an allreduce takes, by latency and bandwidth inside and between hosts
- ``step``         how long a step takes, by compute, jitter, communication and overlap
- ``model``        a job as draws of those parameters; forecasts with intervals
- ``sample``       draws from a posterior
- ``fit``          a model from a table of throughputs
- ``calibration``  a model from a file, or from one step time
- ``calibrate``    measures a calibration on this machine
- ``check``        the predictor against published tables
- ``coordinator``  what agreement costs with a thousand ranks, simulated
- ``forecast``     what `hora plan` prints about time and efficiency
"""
