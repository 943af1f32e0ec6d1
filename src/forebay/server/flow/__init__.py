"""Flow control: memory, fair turns, limits of a request, and write queues.

The modules here only keep count and order. `forebay.server.wire.rpc` decides whether the next request of a connection
may start (`RpcProtocol._must_wait`) and whether its bytes are read (`RpcProtocol.balance`).
"""
