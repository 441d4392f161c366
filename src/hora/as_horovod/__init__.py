"""What ``hora run --as-horovod`` puts on the workers' path: a package ``horovod`` that is Hora under its names."""
