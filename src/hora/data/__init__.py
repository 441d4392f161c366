"""Training data: file formats read and written without their frameworks, and samplers for many workers."""
