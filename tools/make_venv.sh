#!/bin/sh
# make_venv.sh FOLDER PYTHON REQUIREMENT: a virtual environment with Forebay in it, in editable mode.
set -eu
folder=$1 python=$2 requirement=$3
[ -n "$python" ] || exit 1
if ! command -v cc >/dev/null 2>&1 && ! command -v gcc >/dev/null 2>&1; then
    echo "Forebay compiles its kernels on installation and needs a C compiler (Debian: apt install gcc)" >&2
    exit 1
fi
install() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
echo "Installing $requirement into $folder (a minute or two the first time)"
install --upgrade pip
install --upgrade 'setuptools>=77' 'Cython>=3.1'
# The kernels are compiled here, while pip downloads and unpacks everything else, and not by pip.
"$folder/bin/python" "$(dirname "$0")/build_kernels.py" & kernels=$!
trap 'kill "$kernels" 2>/dev/null || :' EXIT
FOREBAY_KERNELS=beside install -e "$requirement"
wait "$kernels"
