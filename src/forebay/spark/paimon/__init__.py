"""Paimon tables in Spark: a catalog over a warehouse, batch and streaming reads and writes, maintenance as procedures.

The lake engine (`forebay.paimon`) plans and runs single tasks; this package hands them to Spark. The driver plans and
commits, workers move data: a task reads splits, or writes files and sends back their commit messages. A `LakeContext`
is what the proxies of one catalog share; tables pickle small, and workers reopen them.
"""
