"""Handwritten digits: the first network everybody trains, as the TensorFlow and Horovod projects have it."""
