"""Builds the compiled kernels. Everything else about the package stands in pyproject.toml."""

import os
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup

DIRECTIVES = {
    "language_level": "3",
    "boundscheck": False,
    "wraparound": False,
    "cdivision": True,
    "embedsignature": True,
}


def extensions() -> list[Extension]:
    """One extension module for each `.pyx` file below `src/`."""
    found = []
    for path in sorted(Path("src").rglob("*.pyx")):
        module = ".".join(path.relative_to("src").with_suffix("").parts)
        found.append(Extension(module, [str(path)], extra_compile_args=["-O3", "-g0", "-fno-strict-aliasing"]))
    return found


# FOREBAY_KERNELS=beside: the kernels already lie beside their sources (tools/make_venv.sh).
beside = os.environ.get("FOREBAY_KERNELS") == "beside"
setup(
    ext_modules=[] if beside else cythonize(extensions(), compiler_directives=DIRECTIVES, include_path=["src"]),
    options={"build_ext": {"parallel": True}},  # on all cores
)
