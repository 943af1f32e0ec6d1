"""`make proofs`: the long trials, and the table of their counts in docs/correctness.md.

Nouns: a *trial* is one line of that table (`trials`); it is run in *chunks* (`chunk`). A trial *vouches for* paths of
the source, and has paths of *its own*: the code that makes the trial. Its *count* is the sum of what its chunks have
counted (`counts`); it is kept in docs/results with the oldest commit of them. A count is *stale* if more than a few
lines that it vouches for, or any line of the trial, have changed since that commit (`history`). `page` writes the
table, `run` runs the trials, `state` keeps in build/proofs what has been run.
"""
