#!/bin/sh
# All checks, quick ones first. `check.sh lint` stops before the tests.
set -eu
bin=.venv/bin
step() { printf '\n== %s\n' "$*"; }
step "style"; "$bin/ruff" check .; "$bin/ruff" format --check .
step "types"; "$bin/mypy"
step "imports"; "$bin/lint-imports"
[ "${1:-}" = lint ] && exit 0
# Whole files go to one of two processes: many tests wait rather than compute, and share what a file sets up.
step "tests"; "$bin/python" -m pytest -m "not slow" -n "${TEST_WORKERS:-2}" --dist loadfile --durations 20
