#!/bin/sh
# Run tests on several Pythons, each in an environment of its own.
#   tools/versions.sh [PYTHON:lowest|newest|smoke ...]      VERSIONS_TESTS="tests/paimon tests/lake" tools/versions.sh 3.11:lowest
# lowest, newest: most tests, with the lowest or newest versions of the dependencies. smoke: in a minute or two of CPU,
# server, client, transactions, a simulation and a lake, with kernels that are compiled quickly; this is a part of CI.
# A Python that is not on the machine is taken from Debian (tools/debian_python.py); what cannot be had or installed is
# named and left out, which is an error if it alone was asked for. Everything is made in a temporary folder: a copy of
# the sources, environments, uv.
set -u
all="tests/api tests/codec tests/kv tests/lake tests/paimon tests/unionread tests/client tests/server tests/spark/test_spark_reading.py tests/spark/test_spark_native.py"
smoke="tests/docs/test_first_block.py tests/codec/rows/test_rows.py tests/client/test_transactions.py tests/client/writing/test_write.py tests/client/lookups/test_lookup.py tests/server/storage/test_open_buckets.py tests/simulation/test_whole_server.py tests/paimon/test_table.py tests/paimon/test_table_engines.py tests/unionread/test_union_read.py"
[ $# -gt 0 ] || set -- 3.11:lowest 3.11:newest 3.12:newest 3.13:newest 3.14:newest
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
python=$(tools/find_python.sh) || exit 1

# The interpreters of pyenv are in no PATH, and its shims there fail for all but one.
for bin in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-9]*/bin; do PATH="$bin:$PATH"; done
uv=$(command -v uv || command -v "$PWD/.venv/bin/uv") || {
    "$python" -m venv "$root/uv" && "$root/uv/bin/pip" install --quiet uv || exit 1
    uv=$root/uv/bin/uv
}
mkdir "$root/src"
# C code of the kernels is the same for every Python: what is there is taken along.
{ git ls-files -z --cached --others --exclude-standard; [ ! -d build/c ] || find build/c -type f -print0; } |
    xargs -0 tar cf - | tar xf - -C "$root/src"
cd "$root/src" || exit 1

results="" failed=0 ran=0
# result PAIR TEXT: what the table at the end says.
result() { results="$results$1|$2
"; printf '\n== %s: %s\n' "$1" "$2"; }

for pair in "$@"; do
    version=${pair%%:*} bound=${pair##*:} env="$root/$version-$bound"
    tests=$all resolution=highest optimize=3
    needed="--extra dev --extra s3 --extra spark"
    case $bound in
    lowest) resolution=lowest-direct ;;
    newest) ;;
    smoke)
        tests=$smoke optimize=0
        needed="--extra bitmaps --extra iceberg --extra paimon --extra sql --group smoke" ;;
    *) echo "$pair: say PYTHON:lowest, PYTHON:newest or PYTHON:smoke, such as 3.11:lowest" >&2; exit 2 ;;
    esac
    tests=${VERSIONS_TESTS:-$tests}
    interpreter=$("$uv" python find --no-python-downloads "$version" 2>/dev/null) ||
        interpreter=$("$python" tools/debian_python.py "$version" "$root/debian-$version" 2>"$root/why.txt") || {
        result "$pair" "left out: there is no Python $version on this machine, and $(tr '\n' ' ' <"$root/why.txt")"
        continue
    }
    "$uv" venv --quiet --python "$interpreter" "$env"
    # What would take a quarter of an hour to compile is taken as a wheel, or not at all.
    # shellcheck disable=SC2086 # the extras are words
    if ! "$uv" pip install --quiet --python "$env/bin/python" --resolution "$resolution" \
        --only-binary numpy --only-binary pyarrow --only-binary pandas --only-binary duckdb \
        --only-binary pydantic-core --only-binary pyiceberg --only-binary rocksdict --only-binary lmdb \
        -r pyproject.toml $needed 2>"$root/why.txt"; then
        result "$pair" "left out, cannot be installed: $(tr '\n' ' ' <"$root/why.txt" | cut -c 1-300)"
        continue
    fi
    FOREBAY_OPTIMIZE=$optimize "$uv" pip install --quiet --python "$env/bin/python" --no-deps --no-build-isolation . || {
        result "$pair" "FAILED to build"
        failed=1
        continue
    }
    printf '\n== %s\n' "$pair"
    "$uv" pip freeze --python "$env/bin/python" | tr '\n' ' '
    echo
    ran=1
    # shellcheck disable=SC2086 # the folders are words
    if "$env/bin/python" -m pytest $tests -m "not slow and not foreign" --timeout 600 >"$root/out.txt" 2>&1; then
        result "$pair" "$(tail -n 1 "$root/out.txt")"
    else
        tail -n 60 "$root/out.txt"
        grep -E '^(FAILED|ERROR)' "$root/out.txt"
        result "$pair" "FAILED: $(tail -n 1 "$root/out.txt")"
        failed=1
    fi
done
printf '\n== all\n%s' "$results"
[ $ran = 1 ] || [ $# -gt 1 ] || failed=1
exit $failed
