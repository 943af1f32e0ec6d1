"""Measures Forebay and its peers in one run: `python -m benchmarks`, or `make bench`, which writes docs/benchmarks.md.

Terms: a *section* is a module of this package with a `run` function, and one part of the report; a *figure* is one
measured value, optionally with its ratio to another one and a target; a *contender* is one way to do the same work.

Rules: contenders of a comparison take turns on the same machine, server and rows, so that other load on the machine
affects all of them alike; the median of the turns counts. The server runs in a separate process, the client in this
one. Nothing here decides whether a test passes: a figure that misses its target is printed as MISS, with its reason.
"""

import forebay as forebay  # before pyarrow, whose allocator it sets up
