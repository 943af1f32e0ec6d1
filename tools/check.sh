#!/bin/sh
# All checks, quick ones first. `check.sh lint` stops before the tests.
set -eu
bin=.venv/bin
step() { printf '\n== %s\n' "$*"; }
step "style"; "$bin/ruff" check . && "$bin/ruff" format --check .
step "types"; "$bin/mypy"
step "imports"; "$bin/lint-imports"
[ "${1:-}" = lint ] && exit 0
step "tests"; "$bin/python" -m pytest -m "not slow"
