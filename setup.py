"""Builds the compiled kernels. Everything else about the package stands in pyproject.toml."""

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


setup(
    ext_modules=cythonize(extensions(), compiler_directives=DIRECTIVES, include_path=["src"]),
    options={"build_ext": {"parallel": True}},  # on all cores
)
