"""The engine `hlog`: a hash index in memory over an append-only log of records in mapped files."""
