"""`hora lab study`: the nine experiments of the reference study in miniature, and its three questions answered.

- ``published``  the study's experiments and tables, as they are compared with
- ``scale``      what its GPUs, batches, epochs and images become here, and about how long that takes
- ``data``       the images: part of MNIST, or generated
- ``measure``    the experiments: throughput (1 to 3) and quality (4 to 9)
- ``answers``    the three questions
- ``show``       the tables, each beside the study's
"""
