# The schema half of the Arrow C data interface (the array half is in _arrow_c.pxd).
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifndef FOREBAY_ARROW_C_SCHEMA
    #define FOREBAY_ARROW_C_SCHEMA
    #include <stdint.h>
    struct ForebayArrowSchema {
      const char* format;
      const char* name;
      const char* metadata;
      int64_t flags;
      int64_t n_children;
      struct ForebayArrowSchema** children;
      struct ForebayArrowSchema* dictionary;
      void (*release)(struct ForebayArrowSchema*);
      void* private_data;
    };
    #endif
    """
    ctypedef struct ArrowSchema "struct ForebayArrowSchema":
        const char* format
        const char* name
        int64_t flags
        int64_t n_children
        ArrowSchema** children
        ArrowSchema* dictionary

cdef enum:
    FLAG_NULLABLE = 2
