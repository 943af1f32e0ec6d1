#!/bin/sh
# The Rust client's own integration tests against a server: run_rust_suite.sh ADDRESS SASL_ADDRESS [options]
# The server must know the users admin/admin-secret and alice/alice-secret. Options: see suites.py.
here=$(cd "$(dirname "$0")" && pwd)
exec "${PYTHON:-$here/../../.venv/bin/python}" "$here/suites.py" rust "$@"
