"""Compile the kernels that are missing or older than their sources; the installation and `make build` call this.

`setup.py build_ext --inplace` compiles the same files. This also says how many, keeps warnings about generated code to
itself unless it fails, and takes a tenth of a second when there is nothing to do.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHARED = "forebay/base/_cython"  # made without a source of ours: see setup.py


def stale(root: Path) -> list[Path]:
    """The `.pyx` files below `root/src` whose kernel for this Python is missing, or older than what it is made of.

    Without the code that the kernels share, all of them.
    """
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    shared = [root / "setup.py", *(root / "src").rglob("*.pxd")]
    sources = sorted((root / "src").rglob("*.pyx"))
    if not (root / "src" / SHARED).with_suffix(suffix).exists():
        return sources
    found = []
    for source in sources:
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
    command = [sys.executable, "setup.py", "-q", "build_ext", "--inplace"]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.stderr.buffer.write(done.stdout)  # pages of warnings about generated code, and the error at its end
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
