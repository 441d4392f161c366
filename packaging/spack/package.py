"""A Spack recipe: put it into a repository of yours as packages/py-hora/package.py."""

# ruff: noqa: F403, F405  # the way of all Spack recipes

from spack.package import *


class PyHora(PythonPackage):
    """Scale a training script from one process to many: Horovod's API, made new."""

    license("Apache-2.0")
    version("0.1.0")  # of a source tree: spack dev-build py-hora@0.1.0

    variant("torch", default=True, description="With PyTorch")
    variant("mpi", default=False, description="With mpi4py, for fabrics that MPI knows")

    depends_on("c", type="build")
    depends_on("python@3.11:", type=("build", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("py-click@8.1:", type=("build", "run"))
    depends_on("py-msgspec@0.19:", type=("build", "run"))
    depends_on("py-numpy@1.23:", type=("build", "run"))
    depends_on("py-psutil@5.9:", type=("build", "run"))
    depends_on("py-rich@13.7:", type=("build", "run"))
    depends_on("py-torch@2.4:", type=("build", "run"), when="+torch")
    depends_on("py-mpi4py@4:", type=("build", "run"), when="+mpi")

    def setup_build_environment(self, env):  # type: ignore[no-untyped-def]
        env.set("HORA_BUILD_CORE", "require")
