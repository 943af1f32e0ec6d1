import asyncio

class SocketTransport(asyncio.Transport):
    fd: int
