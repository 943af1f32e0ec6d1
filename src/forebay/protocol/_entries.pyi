from array import array

from typing_extensions import Buffer

PLAIN: int
TEXT: int
TEXTS: int
BYTES_LIST: int
NUMBERS: int
NUMBERS_32: int
NUMBERS_64: int
MESSAGE: int

def entries(data: Buffer, layout: array[int], begins: array[int], type_: int, count_max: int) -> tuple[int, bool]: ...
