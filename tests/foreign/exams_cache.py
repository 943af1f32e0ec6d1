"""The cache directory of the exams, for downloaded third-party software.

Terms: a *cache entry* is a directory named after the content that it was made from (a pom, a set of sources), so that a
change of the recipe makes a new entry and two checkouts can share one cache. An *unavailable exam* (`ExamUnavailable`)
is not a failure: a tool or a registry is missing, and its message says which.

Flow: `entry(...)` takes the cache's lock, returns the finished entry if there is one, otherwise builds it in a scratch
directory and publishes it by one rename.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).resolve().parent


class ExamUnavailable(Exception):
    """An exam cannot be held on this machine; the message names what is missing and what to do."""


def cache_root() -> Path:
    """The folder for everything downloaded: `FOREBAY_EXAMS_CACHE`, by default `~/.cache/forebay-exams`."""
    configured = os.environ.get("FOREBAY_EXAMS_CACHE")
    root = Path(configured) if configured else Path.home() / ".cache" / "forebay-exams"
    root.mkdir(parents=True, exist_ok=True)
    return root.resolve()


@contextmanager
def _locked() -> Iterator[None]:
    with (cache_root() / ".lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def digest_of(*parts: Path | str) -> str:
    """A short digest over the contents of files and over plain strings, in the given order."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part.read_bytes() if isinstance(part, Path) else part.encode())
        digest.update(b"\0")
    return digest.hexdigest()[:16]


def entry(kind: str, digest: str, build: Callable[[Path], None]) -> Path:
    """The finished cache entry `<kind>-<digest>`, built by `build(scratch folder)` when it is not there yet.

    Errors of `build` leave no entry behind. Other processes that ask for an entry meanwhile wait.
    """
    final = cache_root() / f"{kind}-{digest}"
    with _locked():
        if final.is_dir():
            return final
        scratch = Path(tempfile.mkdtemp(prefix=f".{kind}-", dir=cache_root()))
        try:
            build(scratch)
            scratch.rename(final)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return final


def tool(name: str, purpose: str) -> str:
    """The path of the program `name`; raises `ExamUnavailable` with its `purpose` where it is not installed."""
    path = shutil.which(name)
    if path is None:
        raise ExamUnavailable(f"`{name}` is not on PATH; it is needed to {purpose}")
    return path


def run(command: Sequence[str | Path], what: str, *, cwd: Path | None = None) -> str:
    """Run a command to its end and return its output; raises `ExamUnavailable` with its last lines if it fails."""
    done = subprocess.run(
        [str(part) for part in command],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        tail = "\n".join(line for line in done.stdout.splitlines() if line.strip())[-1500:]
        raise ExamUnavailable(f"could not {what} (exit code {done.returncode}):\n{tail}")
    return done.stdout


def java_version(java: str) -> int:
    """The major version of a `java` program."""
    banner = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    for word in banner.replace('"', " ").split():
        if word[:1].isdigit():
            major = word.split(".")
            return int(major[1] if major[0] == "1" else major[0])
    raise ExamUnavailable(f"`{java} -version` names no version: {banner!r}")


def java_tool(name: str) -> str:
    """The path of `java` or `javac`, from `JAVA_HOME` where that is set; needs version 11 or newer."""
    home = os.environ.get("JAVA_HOME")
    path = str(Path(home) / "bin" / name) if home and (Path(home) / "bin" / name).exists() else None
    path = path or tool(name, "run Apache Fluss's Java software (install a JDK 17)")
    if name == "java" and (version := java_version(path)) < 11:
        raise ExamUnavailable(f"{path} is Java {version}; Apache Fluss 0.9.1 needs 11 or newer")
    return path


def fluss_jars() -> Path:
    """The folder with the jars that `java/pom.xml` names, resolved once from Maven Central."""
    pom = HERE / "java" / "pom.xml"

    def resolve(scratch: Path) -> None:
        maven = tool("mvn", "download Apache Fluss from Maven Central")
        run(
            [
                maven,
                "--batch-mode",
                "--quiet",
                "--file",
                pom,
                f"-Dmaven.repo.local={cache_root() / 'maven'}",
                "dependency:copy-dependencies",
                f"-DoutputDirectory={scratch}",
            ],
            "download Apache Fluss from Maven Central",
        )

    return entry("jars", digest_of(pom), resolve)


def jar_path(*prefixes: str) -> str:
    """A Java class path of the cached jars whose file names begin with one of the `prefixes`."""
    jars = sorted(jar for jar in fluss_jars().glob("*.jar") if jar.name.startswith(prefixes))
    return os.pathsep.join(map(str, jars))


PAIMON_VERSION = "1.3.1"
"""The Paimon that the pom of Fluss 0.9.1 names."""


def fluss_lake_class_path(lake_format: str = "paimon") -> str:
    """A Java class path with what a Fluss cluster needs for a lake of that format, local or (Paimon) on S3.

    Hadoop's client is that of PySpark.
    """
    lake = f"org.apache.fluss:fluss-lake-{lake_format}:0.9.1-incubating:jar"
    paimon = [f"org.apache.paimon:{name}:{PAIMON_VERSION}:jar" for name in ("paimon-bundle", "paimon-s3")]
    engine = {"paimon": paimon, "iceberg": ["org.xerial:sqlite-jdbc:3.50.3.0:jar"]}[lake_format]
    return os.pathsep.join(map(str, [*_artifacts(f"fluss-{lake_format}-jars", lake, *engine), *_hadoop_client()]))


def fluss_flink_class_path() -> str:
    """A Java class path with Fluss's connector for Flink (union reads, the tiering service), Flink, and the lake."""
    pom = HERE / "java" / "flink" / "pom.xml"

    def resolve(scratch: Path) -> None:
        maven = tool("mvn", "download Apache Flink from Maven Central")
        run(
            [maven, "--batch-mode", "--quiet", "--file", pom, f"-Dmaven.repo.local={cache_root() / 'maven'}",
             "dependency:copy-dependencies", f"-DoutputDirectory={scratch}"],
            "download Apache Flink from Maven Central",
        )  # fmt: skip

    connector = "org.apache.fluss:fluss-flink-1.20:0.9.1-incubating:jar"
    jars = sorted(entry("flink-jars", digest_of(pom), resolve).glob("*.jar"))
    jars += _artifacts("fluss-flink-jars", connector)
    return os.pathsep.join([*map(str, jars), fluss_lake_class_path()])


def _artifacts(kind: str, *artifacts: str) -> list[Path]:
    """The jars of `artifacts` alone: the parents of some of Fluss's are not published, so nothing may ask for them."""

    def resolve(scratch: Path) -> None:
        maven = tool("mvn", "download Apache Fluss from Maven Central")
        for artifact in artifacts:
            run(
                [maven, "--batch-mode", "--quiet", f"-Dmaven.repo.local={cache_root() / 'maven'}",
                 "dependency:copy", f"-Dartifact={artifact}", f"-DoutputDirectory={scratch}"],
                "download Apache Fluss from Maven Central",
            )  # fmt: skip

    return sorted(entry(kind, digest_of(*artifacts), resolve).glob("*.jar"))


def _hadoop_client() -> list[Path]:
    spec = importlib.util.find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise ExamUnavailable("PySpark, whose Hadoop client Java Paimon needs, is not installed")
    return sorted((Path(spec.origin).parent / "jars").glob("hadoop-client-*.jar"))


def java_classes(folder: str, class_path: str) -> Path:
    """Our own Java sources of `java/<folder>`, compiled once against `class_path`."""
    sources = sorted((HERE / "java" / folder).glob("*.java"))

    def compile_sources(scratch: Path) -> None:
        run(
            [java_tool("javac"), "-nowarn", "-proc:none", "-cp", class_path, "-d", scratch, *sources],
            f"compile tests/foreign/java/{folder}",
        )

    return entry(f"classes-{folder}", digest_of(*sources, class_path), compile_sources)
