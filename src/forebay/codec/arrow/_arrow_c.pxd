# The Arrow C data interface (https://arrow.apache.org/docs/format/CDataInterface.html), through which
# the kernels take and give Arrow arrays without a Python object per buffer.
from libc.stdint cimport int64_t

cdef extern from *:
    """
    #ifndef FOREBAY_ARROW_C_DATA
    #define FOREBAY_ARROW_C_DATA
    #include <stdint.h>
    struct ForebayArrowArray {
      int64_t length;
      int64_t null_count;
      int64_t offset;
      int64_t n_buffers;
      int64_t n_children;
      const void** buffers;
      struct ForebayArrowArray** children;
      struct ForebayArrowArray* dictionary;
      void (*release)(struct ForebayArrowArray*);
      void* private_data;
    };
    #endif
    """
    ctypedef struct ArrowArray "struct ForebayArrowArray":
        int64_t length
        int64_t null_count
        int64_t offset
        int64_t n_buffers
        int64_t n_children
        const void** buffers
        ArrowArray** children
        ArrowArray* dictionary
        void (*release)(ArrowArray*) noexcept nogil
        void* private_data
