# Fetching memory into the processor's cache before it is needed, where the compiler can.

cdef extern from *:
    """
    #if defined(__GNUC__)
    #define forebay_prefetch(address) __builtin_prefetch(address)
    #else
    #define forebay_prefetch(address) ((void) 0)
    #endif
    """
    void forebay_prefetch(const void* address) noexcept nogil
