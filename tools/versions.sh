#!/bin/sh
# Run tests on the lowest and on the newest versions of the dependencies, each pair in an environment of its own.
#   tools/versions.sh [PYTHON:lowest|newest ...]        VERSIONS_TESTS="tests/paimon tests/lake" tools/versions.sh 3.11:lowest
# Pythons that are not on the machine are named and left out, and so are pairs that cannot be installed.
# Everything is made in a temporary folder: a copy of the sources, environments, uv (if it is not installed).
set -u
tests=${VERSIONS_TESTS:-tests/api tests/codec tests/kv tests/lake tests/paimon tests/unionread tests/client tests/server tests/spark/test_spark_reading.py tests/spark/test_spark_native.py}
[ $# -gt 0 ] || set -- 3.11:lowest 3.11:newest 3.12:newest 3.13:newest 3.14:newest
root=$(mktemp -d)
trap 'rm -rf "$root"' EXIT
trap 'exit 130' INT TERM
python=$(tools/find_python.sh) || exit 1

# The interpreters of pyenv are in no PATH, and its shims there fail for all but one.
for bin in "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.1[1-9]*/bin; do PATH="$bin:$PATH"; done
uv=$(command -v uv) || {
    "$python" -m venv "$root/uv" && "$root/uv/bin/pip" install --quiet uv || exit 1
    uv=$root/uv/bin/uv
}
mkdir "$root/src"
git ls-files -z --cached --others --exclude-standard | xargs -0 tar cf - | tar xf - -C "$root/src"
cd "$root/src" || exit 1

results="" failed=0
# result PAIR TEXT: what the table at the end says.
result() { results="$results$1|$2
"; printf '\n== %s: %s\n' "$1" "$2"; }

for pair in "$@"; do
    version=${pair%%:*} bound=${pair##*:} env="$root/$version-$bound"
    case $bound in
    lowest) resolution=lowest-direct ;;
    newest) resolution=highest ;;
    *) echo "$pair: say PYTHON:lowest or PYTHON:newest, such as 3.11:lowest" >&2; exit 2 ;;
    esac
    found=$("$uv" python find --no-python-downloads "$version" 2>/dev/null) || {
        result "$pair" "left out: there is no Python $version on this machine"
        continue
    }
    "$uv" venv --quiet --python "$found" "$env"
    # What would take a quarter of an hour to compile is taken as a wheel, or not at all.
    if ! "$uv" pip install --quiet --python "$env/bin/python" --resolution "$resolution" \
        --only-binary numpy --only-binary pyarrow --only-binary pandas --only-binary duckdb \
        --only-binary pydantic-core --only-binary rocksdict --only-binary lmdb \
        -r pyproject.toml --extra dev --extra s3 --extra spark \
        2>"$root/why.txt"; then
        result "$pair" "left out, cannot be installed: $(tr '\n' ' ' <"$root/why.txt" | cut -c 1-300)"
        continue
    fi
    "$uv" pip install --quiet --python "$env/bin/python" --no-deps --no-build-isolation . || {
        result "$pair" "FAILED to build"
        failed=1
        continue
    }
    printf '\n== %s\n' "$pair"
    "$uv" pip freeze --python "$env/bin/python" | tr '\n' ' '
    echo
    # shellcheck disable=SC2086 # the folders are words
    if "$env/bin/python" -m pytest $tests -m "not slow and not foreign" --timeout 600 >"$root/out.txt" 2>&1; then
        result "$pair" "$(tail -n 1 "$root/out.txt")"
    else
        grep -E '^(FAILED|ERROR)' "$root/out.txt"
        result "$pair" "FAILED: $(tail -n 1 "$root/out.txt")"
        failed=1
    fi
done
printf '\n== all (%s)\n%s' "$tests" "$results"
exit $failed
