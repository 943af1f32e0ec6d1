"""Builds the compiled kernels. Everything else about the package stands in pyproject.toml."""

import os
import subprocess
import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

DIRECTIVES = ("language_level=3", "boundscheck=False", "wraparound=False", "cdivision=True", "embedsignature=True")
# FOREBAY_OPTIMIZE=0 compiles in a quarter of the time, for kernels that only have to be right (tools/versions.sh).
COMPILE = [f"-O{os.environ.get('FOREBAY_OPTIMIZE', '3')}", "-g0", "-fno-strict-aliasing", "-fvisibility=hidden"]
SHARED = "forebay.base._cython"  # what Cython adds to kernels with memory views, 300 kB each; once for all of them
STRIP = ["-s"] if sys.platform == "linux" else []  # symbols are half of a kernel's size


def extensions() -> list[Extension]:
    """One extension module for each `.pyx` file below `src/`."""
    depends = ["setup.py", *(str(path) for path in Path("src").rglob("*.pxd"))]
    found = [Extension(SHARED, [], depends=depends, extra_compile_args=COMPILE, extra_link_args=STRIP)]
    for path in sorted(Path("src").rglob("*.pyx"), key=lambda path: -path.stat().st_size):  # the longest first
        module = ".".join(path.relative_to("src").with_suffix("").parts)
        found.append(Extension(module, [str(path)], depends=depends, extra_compile_args=COMPILE, extra_link_args=STRIP))
    return found


class BuildKernels(build_ext):
    """Cython and the C compiler for one kernel after the other, for as many at a time as there are cores.

    Cython runs in a process of its own: in threads of this one the kernels would wait for each other. C code goes to a
    directory beside those of temporary files, so that it is in no wheel; it is the same for every Python.
    """

    def finalize_options(self) -> None:
        super().finalize_options()
        self.parallel = self.parallel or True  # on all cores

    def build_extension(self, ext: Extension) -> None:
        target = Path(self.get_ext_fullpath(ext.name))
        newest = max(Path(source).stat().st_mtime_ns for source in (*ext.sources, *ext.depends))
        if not self.force and target.exists() and target.stat().st_mtime_ns > newest:
            return
        code = Path(self.build_temp).parent.joinpath("c", *ext.name.split(".")).with_suffix(".c")
        if self.force or not code.exists() or code.stat().st_mtime_ns <= newest:
            self.translate(ext, code)
        ext.sources = [str(code)]
        super().build_extension(ext)

    def translate(self, ext: Extension, code: Path) -> None:
        """Write the C code of a kernel."""
        # In a folder of its own: before 3.3.1 Cython gives the shared module the name of its file.
        written = code.parent / "new" / code.name
        written.parent.mkdir(parents=True, exist_ok=True)
        if ext.name == SHARED:
            arguments = ["--generate-shared", str(written)]
        else:
            directives = [part for directive in DIRECTIVES for part in ("-X", directive)]
            arguments = ["-I", "src", *directives, "--shared", SHARED, "-o", str(written), *ext.sources]
        subprocess.run([sys.executable, "-m", "cython", "--module-name", ext.name, *arguments], check=True)
        written.replace(code)


def urls() -> dict[str, str]:
    """The addresses for the package's metadata; FOREBAY_URL is that of the public repository it is built from."""
    found = {"Apache Fluss": "https://fluss.apache.org", "Apache Paimon": "https://paimon.apache.org"}
    if base := os.environ.get("FOREBAY_URL"):
        found |= {"Homepage": base, "Documentation": f"{base}/tree/HEAD/docs", "Issues": f"{base}/issues"}
        found |= {"Changelog": f"{base}/blob/HEAD/CHANGELOG.md"}
    return found


# FOREBAY_KERNELS=beside: the kernels already lie beside their sources (tools/make_venv.sh).
beside = os.environ.get("FOREBAY_KERNELS") == "beside"
setup(
    ext_modules=[] if beside else extensions(),
    cmdclass={"build_ext": BuildKernels},
    project_urls=urls(),
)
