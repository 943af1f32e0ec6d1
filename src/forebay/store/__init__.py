"""An object store as the home of a server's data: objects, and the journal of all that the server did."""
