#!/bin/sh
# make_venv.sh FOLDER PYTHON REQUIREMENT: a virtual environment with Forebay in it, in editable mode.
set -eu
folder=$1 python=$2 requirement=$3
[ -n "$python" ] || exit 1
if ! command -v cc >/dev/null 2>&1 && ! command -v gcc >/dev/null 2>&1; then
    echo "Forebay compiles its kernels on installation and needs a C compiler (Debian: apt install gcc)" >&2
    exit 1
fi
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
echo "Installing $requirement into $folder (a minute or two the first time)"
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip
"$folder/bin/python" -m pip install --quiet --disable-pip-version-check -e "$requirement"
