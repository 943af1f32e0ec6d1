#!/bin/sh
# All checks, quick ones first. `check.sh lint` stops before the tests.
set -eu
bin=.venv/bin
step() { printf '\n== %s\n' "$*"; }
closer_checks() {
    step "types"; "$bin/mypy" && step "imports" && "$bin/lint-imports" && step "plain English" &&
        "$bin/python" tools/plain_english.py
}
step "style"; "$bin/ruff" check .; "$bin/ruff" format --check .
if [ "${1:-}" = lint ]; then
    closer_checks
    exit
fi
# Types and imports are checked beside the tests, which leave a third of two cores idle. What they found stands below.
found=$(mktemp)
trap 'rm -f "$found"' EXIT
closer_checks >"$found" 2>&1 & checking=$!
# Modules of Forebay and of the tests are compiled once, for all processes that the tests start, also where
# PYTHONDONTWRITEBYTECODE is set. What cannot be imported is told by the tests themselves.
env -u PYTHONDONTWRITEBYTECODE "$bin/python" -m pytest --collect-only -q -m "not slow" >/dev/null 2>&1 || :
# Whole files go to one of four processes: many tests wait rather than compute, and share what a file sets up.
# tests/conftest.py says in which order; xdist would else begin with the files of most tests and end with the slowest.
# Their files are in memory where there is room for them (they take 2 GB): a third of the time in the kernel is for a disk.
kilobytes() { awk "$1" "$2" 2>/dev/null || :; }
limit=$(kilobytes '{ print ($1 == "max") ? 99999999 : int($1 / 1024) }' /sys/fs/cgroup/memory.max)
memory=$(kilobytes '$1 == "MemAvailable:" { print $2 }' /proc/meminfo)
room=$(df -Pk /dev/shm 2>/dev/null | awk 'NR == 2 { print $4 }')
if [ -z "${TMPDIR:-}" ] && [ -w /dev/shm ] && [ "${room:-0}" -gt 6000000 ] && [ "${memory:-0}" -gt 12000000 ] &&
    [ "${limit:-12000001}" -gt 12000000 ]; then
    TMPDIR=$(mktemp -d /dev/shm/tests.XXXXXX); export TMPDIR
    chmod 755 "$TMPDIR"  # PostgreSQL runs as another user
    trap 'rm -rf "$found" "$TMPDIR"' EXIT
fi
step "tests"
outcome=0
"$bin/python" -m pytest -m "not slow" -n "${TEST_WORKERS:-4}" --dist loadfile --no-loadscope-reorder --durations 20 ||
    outcome=$?
wait "$checking" || outcome=1
cat "$found"
exit "$outcome"
