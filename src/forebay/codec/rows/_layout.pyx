"""The layout of a row: its type tree flattened, parents before children, for kernels to walk without Python.

Node 0 is the row itself; the children of a node follow it, each with its own subtree, and `end` jumps over a
subtree. One kernel thus serves every schema (docs/design/0004-compile-the-codecs.md).
"""

from libc.stdlib cimport calloc, free

KINDS = {
    "BOOLEAN": KIND_BOOLEAN, "INT8": KIND_INT8, "INT16": KIND_INT16, "INT32": KIND_INT32, "TIME": KIND_TIME,
    "INT64": KIND_INT64, "FLOAT": KIND_FLOAT, "DOUBLE": KIND_DOUBLE, "STRING": KIND_STRING, "CHAR": KIND_CHAR,
    "BYTES": KIND_BYTES, "BINARY": KIND_BINARY, "DECIMAL_COMPACT": KIND_DECIMAL_COMPACT, "DECIMAL": KIND_DECIMAL,
    "TIMESTAMP_COMPACT": KIND_TIMESTAMP_COMPACT, "TIMESTAMP": KIND_TIMESTAMP, "ARRAY": KIND_ARRAY, "MAP": KIND_MAP,
    "ROW": KIND_ROW,
}
FORMATS = {"COMPACTED": FORMAT_COMPACTED, "INDEXED": FORMAT_INDEXED, "KEY": FORMAT_KEY, "ALIGNED": FORMAT_ALIGNED}


cdef class RowLayout:
    """A flat type tree plus the row format it is stored in.

    `nodes` lists (kind name, nullable, parameter, child count, wanted), parents before children, the row first.
    """

    def __cinit__(self, nodes, str row_format):
        self.node_count = len(nodes)
        self.format = FORMATS[row_format]
        self.nodes = <Node*> calloc(max(1, self.node_count), sizeof(Node))
        if self.nodes == NULL:
            raise MemoryError()
        cdef int index
        for index, (kind, nullable, parameter, child_count, wanted) in enumerate(nodes):
            node = &self.nodes[index]
            node.kind = KINDS[kind]
            node.nullable = nullable
            node.parameter = parameter
            node.child_count = child_count
            node.wanted = wanted
            node.in_length_list = node.kind in (KIND_STRING, KIND_BYTES, KIND_DECIMAL, KIND_ARRAY, KIND_MAP, KIND_ROW)
        if self._link(0) != self.node_count or self.nodes[0].kind != KIND_ROW:
            raise ValueError("a layout needs exactly one tree, with a ROW at its root")
        self.field_count = self.nodes[0].child_count

    cdef int _link(self, int index) except -1:
        """Set `end` and `length_list_size` of the subtree at `index`; return its end."""
        if index >= self.node_count:
            raise ValueError("a layout's child counts exceed its nodes")
        cdef int child = index + 1
        cdef int slots = 0
        cdef int _
        for _ in range(self.nodes[index].child_count):
            if child >= self.node_count:
                raise ValueError("a layout's child counts exceed its nodes")
            slots += self.nodes[child].in_length_list
            child = self._link(child)
        self.nodes[index].end = child
        self.nodes[index].length_list_size = slots
        return child

    def __dealloc__(self):
        free(self.nodes)
