# cython: language_level=3
"""The system calls of the server's sockets: epoll, recv and send. None of them needs Python's lock.

`HAS_EPOLL` is 0 where the system has no epoll. There the functions return -1, and the server uses asyncio's transports.
"""

cdef extern from *:
    """
    #include <sched.h>
    #include <time.h>
    #include <sys/types.h>
    #include <sys/socket.h>
    #ifdef __linux__
    #include <sys/epoll.h>
    #define HAS_EPOLL 1
    #else
    #define HAS_EPOLL 0
    #define MSG_NOSIGNAL 0
    #define EPOLLIN 1
    #define EPOLLOUT 4
    #define EPOLL_CTL_ADD 1
    #define EPOLL_CTL_DEL 2
    #define EPOLL_CTL_MOD 3
    #endif

    static int epoll_change(int epoll, int operation, int fd, unsigned int events) {
    #if HAS_EPOLL
        struct epoll_event event = {.events = events, .data = {.fd = fd}};
        return epoll_ctl(epoll, operation, fd, &event);
    #else
        return -1;
    #endif
    }
    static int epoll_take(int epoll, int capacity, int timeout, int* fds, unsigned int* events) {
    #if HAS_EPOLL
        struct epoll_event ready[256];
        int i, n = epoll_wait(epoll, ready, capacity < 256 ? capacity : 256, timeout);
        for (i = 0; i < n; i++) {
            fds[i] = ready[i].data.fd;
            events[i] = ready[i].events;
        }
        return n;
    #else
        return -1;
    #endif
    }
    static int epoll_watch(int epoll, int capacity, long ns, int* fds, unsigned int* events) {
        struct timespec begin, now;
        int n;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        do {
            sched_yield();
            n = epoll_take(epoll, capacity, 0, fds, events);
            if (n != 0) return n;
            clock_gettime(CLOCK_MONOTONIC, &now);
        } while ((now.tv_sec - begin.tv_sec) * 1000000000L + now.tv_nsec - begin.tv_nsec < ns);
        return 0;
    }
    """
    int epoll_watch(int epoll, int capacity, long ns, int* fds, unsigned int* events) nogil
    int HAS_EPOLL, MSG_NOSIGNAL, MSG_DONTWAIT
    unsigned int EPOLLIN, EPOLLOUT
    int EPOLL_CTL_ADD, EPOLL_CTL_DEL, EPOLL_CTL_MOD
    int epoll_change(int epoll, int operation, int fd, unsigned int events) nogil
    int epoll_take(int epoll, int capacity, int timeout, int* fds, unsigned int* events) nogil
    ssize_t recv(int fd, void* data, size_t size, int flags) nogil
    ssize_t send(int fd, const void* data, size_t size, int flags) nogil
