#!/bin/sh
# Print a Python that Forebay supports, or explain what is missing. 3.14 comes last: fewer of the tools that the tests use
# have wheels for it.
for name in python3.13 python3.12 python3.11 python3 python python3.14; do
    if command -v "$name" >/dev/null 2>&1 &&
        "$name" -c 'import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null; then
        command -v "$name"
        exit 0
    fi
done
echo "Forebay needs Python 3.11 to 3.14 with venv (Debian: apt install python3 python3-venv)" >&2
exit 1
