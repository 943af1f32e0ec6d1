"""Compile the kernels that are missing or older than their sources; the installation and `make build` call this.

What compiled them does not matter. `setup.py build_ext --inplace` alone compiles all of them once more when Cython was
installed after them, as by pip, which compiles in an environment of its own: files of Cython count as sources.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]


def stale(root: Path) -> list[Path]:
    """The `.pyx` files below `root/src` whose kernel for this Python is missing, or older than what it is made of."""
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    shared = [root / "setup.py", *(root / "src").rglob("*.pxd")]
    found = []
    for source in sorted((root / "src").rglob("*.pyx")):
        kernel = source.with_suffix(suffix)
        changed = max(path.stat().st_mtime_ns for path in (source, *shared))
        if not kernel.exists() or kernel.stat().st_mtime_ns <= changed:
            found.append(source)
    return found


def main() -> int:
    sources = stale(ROOT)
    if not sources:
        return 0
    print(f"Compiling {len(sources)} kernels", flush=True)
    for source in sources:
        source.with_suffix(".c").unlink(missing_ok=True)  # Cython does not count setup.py as a source
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.stderr.buffer.write(done.stdout)  # pages of warnings about generated code, and the error at its end
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
