"""Verification of stored data: offline, on a data directory, and online, through the client.

`verify_directory` reads every file of an unused data directory and changes nothing. `verify_server` reads everything
from a running server. Both return a `Report`; `forebay verify` prints it (docs/verify.md). `repair_directory` goes on
without what is damaged in logs. `convert_states` replaces key-value states that earlier versions kept in RocksDB.
"""

from forebay.verify.conversion import ConvertedState, convert_states
from forebay.verify.directory import verify_directory
from forebay.verify.repair import BucketRepair, repair_directory
from forebay.verify.report import Finding, Report
from forebay.verify.running import verify_server

__all__ = [
    "BucketRepair",
    "ConvertedState",
    "Finding",
    "Report",
    "convert_states",
    "repair_directory",
    "verify_directory",
    "verify_server",
]
