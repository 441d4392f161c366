"""Small photographs of ten kinds of things: ResNet-56 with the schedule of a course on Horovod."""
