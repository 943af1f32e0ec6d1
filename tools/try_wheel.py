"""Install wheels as on a machine without a compiler, and use the installation.

    python tools/try_wheel.py [WHEEL ...]        by default, each wheel in dist/ whose CPython is on this machine
    python tools/try_wheel.py --installed        only use what this Python has installed

Each wheel gets a new virtual environment; PATH has only its programs, and CC is a program that fails.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

try:
    from tools.build_wheels import DIST, interpreter, venv
except ModuleNotFoundError:  # called by its path
    from build_wheels import DIST, interpreter, venv

ROOT = Path(__file__).parents[1]
BYTES_MAX = 4 << 20
PROGRAM = """
import importlib
from pathlib import Path
import pyarrow as pa
import forebay
from forebay.paimon import Catalog

top = Path(forebay.__file__).parents[1]
kernels = [path.relative_to(top) for path in top.glob("forebay/**/*.so")]
for kernel in kernels:
    importlib.import_module(".".join(kernel.with_name(kernel.name.partition(".")[0]).parts))
assert len(kernels) > 20, kernels

with forebay.embedded("data") as live:
    clicks = live.create_table("fluss.clicks", {"user": "BIGINT", "page": "STRING"})
    clicks.append([{"user": n, "page": f"/{n}"} for n in range(1000)])
    assert clicks.scan().to_arrow().num_rows == 1000
    users = live.create_table("fluss.users", {"user": "BIGINT", "name": "STRING"}, primary_key="user")
    users.upsert(pa.table({"user": [1, 2], "name": ["ann", "bob"]}))
    users.delete([{"user": 1}])
    assert users.scan().to_arrow().to_pylist() == [{"user": 2, "name": "bob"}]
    assert users.lookup([2], missing="drop").to_pylist() == [{"user": 2, "name": "bob"}]

lake = Catalog.open("lake")
lake.create_database("sales")
print(len(kernels), "kernels loaded, rows written and read,", lake.list_databases())
"""


def use(python: Path | str, environment: dict[str, str]) -> None:
    """Run programs and the command line of an installed Forebay, in a directory outside of the checkout."""
    with tempfile.TemporaryDirectory() as folder:
        forebay = str(Path(python).with_name("forebay"))
        programs = [[str(python), "-c", program] for program in (PROGRAM, *readme(), *readme())]
        for command in (*programs, [forebay, "--help"], [forebay, "doctor"]):
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
            if done.returncode:
                sys.exit(f"{command[-1][-40:]} failed with what was installed:\n{done.stdout}{done.stderr}")
            print("   ", done.stdout.strip().splitlines()[0])


def readme() -> list[str]:
    """The README's programs, except the one that needs Spark and a server."""
    programs = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    return [program for program in programs if "spark" not in program]


def try_wheel(wheel: Path, python: Path) -> None:
    """Fail unless the wheel is small, contains no kernel sources, installs without a compiler, and works."""
    strange = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith((".c", ".pyx", ".pxd"))]
    if strange or wheel.stat().st_size > BYTES_MAX:
        sys.exit(f"{wheel.name} has {wheel.stat().st_size:,} bytes and sources of kernels: {strange[:3]}")
    with tempfile.TemporaryDirectory() as folder:
        installed = venv(python, Path(folder, "venv"))
        # Variables of Python and of the compiler could make the checkout or a compiler available again.
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith("PYTHON") and k not in ("CC", "CXX", "LDSHARED")
        }
        environment = {**kept, "PATH": str(installed.parent), "CC": "/bin/false", "CXX": "/bin/false"}
        command = [str(installed), "-m", "pip", "install", "--quiet", f"{wheel}[paimon]"]
        subprocess.run(command, check=True, cwd=folder, env=environment)
        use(installed, environment)


def main(arguments: list[str]) -> int:
    if arguments == ["--installed"]:
        use(sys.executable, dict(os.environ))
        return 0
    wheels = [Path(argument).resolve() for argument in arguments] or sorted(DIST.glob("*.whl"))
    tried = 0
    for wheel in wheels:
        tag = re.search(r"-cp3(\d+)-", wheel.name)
        python = interpreter(f"3.{tag[1]}") if tag else f"{wheel.name} is for no CPython"
        print(wheel.name, "is skipped: " + python if isinstance(python, str) else "", flush=True)
        if not isinstance(python, str):
            try_wheel(wheel, python)
            tried += 1
    if not tried:
        print("no wheel could be tried: run `make wheels` first", file=sys.stderr)
    return 0 if tried else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
