#!/bin/sh
# All checks, quick ones first (tools/check.py). `check.sh lint` stops before the tests.
exec .venv/bin/python -m tools.check "$@"
