"""Measures Forebay and its peers in one run: `python -m benchmarks`, or `make bench`, which writes docs/benchmarks.md.

Nouns: a *section* is a module of this package with a `run` function, and one part of the report; a *figure* is one
measured value, perhaps with its ratio to another one and a target; a *contender* is one way to do the same work.

Rules: contenders of a comparison take turns on the same machine, server and rows, so that what else the machine does
hurts all of them alike; the median of the turns counts. The server runs in a process of its own, the client in this
one. Nothing here decides whether a test passes: a figure that misses its target is printed as MISS, with its reason.
"""
