"""For tests of programs and formats that use Forebay.

    server.py          a server in this process, or in one that can be killed
    pytest_plugin.py   the fixture `forebay_server` (docs/server.md)
    lake_contract.py   the rules that every lake format keeps (docs/lake-formats.md); lake_contract_*.py are its parts,
                       and lake_rounds.py tiers rows as a worker does
    memory_lake.py     the smallest lake format, in memory; memory_lake_*.py are its parts

Doubles that only Forebay's own tests need are in its tests.
"""
