#!/bin/sh
# make_venv.sh FOLDER PYTHON REQUIREMENT: a virtual environment with Forebay in it, in editable mode.
set -eu
folder=$1 python=$2 requirement=$3
[ -n "$python" ] || exit 1
if ! command -v cc >/dev/null 2>&1 && ! command -v gcc >/dev/null 2>&1; then
    echo "Forebay compiles its kernels on installation and needs a C compiler (Debian: apt install gcc)" >&2
    exit 1
fi
by_pip() { "$folder/bin/python" -m pip install --quiet --disable-pip-version-check "$@"; }
# uv downloads and unpacks with all cores, in a third of pip's time; what it cannot get here, pip may.
install() {
    if [ -x "$folder/bin/uv" ]; then
        "$folder/bin/uv" pip install --quiet --python "$folder/bin/python" "$@" && return
        echo "uv could not install $*; trying pip" >&2
    fi
    by_pip "$@"
}
[ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
echo "Installing $requirement into $folder (a minute or two the first time)"
by_pip --upgrade 'uv>=0.9' || by_pip --upgrade pip
install --upgrade 'setuptools>=77' 'Cython>=3.1'
# The kernels are compiled here, while everything else is downloaded and unpacked, and not by the installer.
"$folder/bin/python" "$(dirname "$0")/build_kernels.py" & kernels=$!
trap 'kill "$kernels" 2>/dev/null || :' EXIT
FOREBAY_KERNELS=beside install -e "$requirement"
wait "$kernels"
