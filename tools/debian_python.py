"""Python from Debian's unstable distribution, unpacked into a folder, for trials on a Python that this machine lacks.

    python tools/debian_python.py 3.14 FOLDER       prints the path of the interpreter

It runs with the C library that it comes with, so the machine's own (also an older one) does not matter and nothing is
installed. Exit code 1, with the reason, where Debian cannot be reached or has no such Python.
"""

from __future__ import annotations

import hashlib
import lzma
import platform
import re
import shutil
import subprocess
import sys
import urllib.request
from pathlib import Path

MIRROR = "http://deb.debian.org/debian"
SUITE = "sid"
ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
TIMEOUT_SECONDS = 60

LAUNCHER = """#!/bin/sh
root={root}
exec "$root"/usr/lib/{triplet}/{loader} --library-path "$root/usr/lib/{triplet}" --argv0 "$0" \\
    "$root/usr/bin/python{version}-program" "$@"
"""


def fetched(path: str) -> bytes:
    with urllib.request.urlopen(f"{MIRROR}/{path}", timeout=TIMEOUT_SECONDS) as response:
        content: bytes = response.read()
    return content


def packages(architecture: str) -> dict[str, dict[str, str]]:
    """The fields of each package of the suite, by its name."""
    index = lzma.decompress(fetched(f"dists/{SUITE}/main/binary-{architecture}/Packages.xz")).decode()
    found = {}
    for paragraph in index.split("\n\n"):
        fields = dict(re.findall(r"^([A-Za-z0-9-]+): (.*)$", paragraph, re.MULTILINE))
        if fields:
            found[fields["Package"]] = fields
    return found


def with_dependencies(names: list[str], known: dict[str, dict[str, str]]) -> list[str]:
    """The packages `names` and all that they need, of alternatives the first. Raises `LookupError` for a missing one.

    Virtual packages are left out: of what a Python needs, none is.
    """
    needed: list[str] = []
    open_ = list(names)
    while open_:
        name = open_.pop()
        if name in needed:
            continue
        if name in names and name not in known:
            raise LookupError(f"Debian {SUITE} has no package {name}")
        if name not in known:
            continue
        needed.append(name)
        for field in ("Depends", "Pre-Depends"):
            open_ += re.findall(r"(?:^|, )([a-z0-9.+-]+)", known[name].get(field, ""))
    return needed


def unpack(fields: dict[str, str], folder: Path) -> None:
    content = fetched(fields["Filename"])
    if hashlib.sha256(content).hexdigest() != fields["SHA256"]:
        raise OSError(f"{fields['Filename']} does not have its checksum")
    archive = folder / "package.deb"
    archive.write_bytes(content)
    subprocess.run(["dpkg-deb", "-x", str(archive), str(folder)], check=True)
    archive.unlink()


def main(version: str, target: str) -> int:
    folder = Path(target).absolute()
    launcher = folder / "usr" / "bin" / f"python{version}"  # Python finds its library from its own name
    machine = platform.machine()
    try:
        known = packages(ARCHITECTURES[machine])
        names = [f"python{version}", f"python{version}-venv", f"libpython{version}-dev", "libstdc++6"]
        for name in with_dependencies(names, known):
            (folder / "usr" / "lib").mkdir(parents=True, exist_ok=True)
            unpack(known[name], folder)
    except (OSError, LookupError, subprocess.CalledProcessError) as e:
        print(f"there is no Python {version} to be had from {MIRROR}: {e}", file=sys.stderr)
        return 1
    triplet = f"{machine}-linux-gnu"
    loader = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}[machine]
    # Debian's pyconfig.h leads to one in a folder that holds headers of the newer C library, too.
    headers = folder / "usr" / "include"
    shutil.copyfile(headers / triplet / f"python{version}" / "pyconfig.h", headers / f"python{version}" / "pyconfig.h")
    launcher.rename(f"{launcher}-program")
    launcher.write_text(LAUNCHER.format(root=folder, triplet=triplet, loader=loader, version=version))
    launcher.chmod(0o755)
    print(launcher)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
