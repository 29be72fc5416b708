/* Storage that fails: loaded before the C library, it counts what a process does to files below one
   folder, and lets the n-th of these calls fail, write less than it was told, or end the process.

   What to do is read from a file that SYMPHONY_FAULTS names (`struct control`), mapped by all
   processes and by the test (tests/support/faults/faults.py), which changes it while they run. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC = 2, SIZE = 4, NAME = 8, UNLINK = 16, MAKE = 32 };
enum { ONCE = 0, ON = 1, SHORT = 2, KILL = 3 };
enum { GO_ON = 0, FAIL = 1, HALF = 2 };

struct control {
    uint64_t armed, at, count, met, number, mode, kinds, pid;
    char folder[1984];  /* ends with a slash */
    char last[2048];    /* the path of the last fault */
};

static struct control *control;

__attribute__((constructor)) static void map_control(void) {
    const char *path = getenv("SYMPHONY_FAULTS");
    int descriptor = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *memory = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED,
                        descriptor, 0);
    close(descriptor);
    if (memory != MAP_FAILED) control = memory;
}

static int is_armed(uint64_t kind) {
    return control && __atomic_load_n(&control->armed, __ATOMIC_ACQUIRE) &&
           (control->kinds & kind) && (!control->pid || control->pid == (uint64_t)getpid());
}

/* What becomes of one call on a path, of which `size` bytes could be written in part. */
static int decide(uint64_t kind, const char *path, size_t size) {
    if (strncmp(path, control->folder, strlen(control->folder))) return GO_ON;
    uint64_t number = __atomic_add_fetch(&control->count, 1, __ATOMIC_ACQ_REL);
    if (number < control->at || (number > control->at && control->mode != ON)) return GO_ON;
    if (control->mode == SHORT && (kind != WRITE || size < 2)) return GO_ON;
    snprintf(control->last, sizeof control->last, "%s", path);
    __atomic_add_fetch(&control->met, 1, __ATOMIC_ACQ_REL);
    if (control->mode == KILL) kill(getpid(), SIGKILL);
    if (control->mode == SHORT) return HALF;
    errno = (int)control->number;
    return FAIL;
}

static int of_descriptor(uint64_t kind, int descriptor, size_t size) {
    if (descriptor <= 2 || !is_armed(kind)) return GO_ON;
    char link[40], path[4096];
    int before = errno;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 2);
    errno = before;
    if (length < 0) return GO_ON;
    strcpy(path + length, "/"); /* the folder itself is below the folder */
    return decide(kind, path, size);
}

static int of_path(uint64_t kind, int folder, const char *path) {
    if (!is_armed(kind)) return GO_ON;
    if (path[0] == '/') return decide(kind, path, 0);
    char link[40], whole[8192];
    int before = errno;
    if (folder == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
    else snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    ssize_t length = readlink(link, whole, 4096);
    errno = before;
    if (length < 0) return GO_ON;
    snprintf(whole + length, sizeof whole - (size_t)length, "/%s", path);
    return decide(kind, whole, 0);
}

#define REAL(result, name, ...)                                  \
    static result (*real)(__VA_ARGS__);                          \
    if (!real) real = (result(*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name)

#define WRITES(name, offset_type)                                                       \
    ssize_t name(int fd, const void *data, size_t size, offset_type offset) {           \
        REAL(ssize_t, name, int, const void *, size_t, offset_type);                    \
        int verdict = of_descriptor(WRITE, fd, size);                                   \
        if (verdict == FAIL) return -1;                                                 \
        return real(fd, data, verdict == HALF ? size / 2 : size, offset);               \
    }
WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
    REAL(ssize_t, write, int, const void *, size_t);
    int verdict = of_descriptor(WRITE, fd, size);
    if (verdict == FAIL) return -1;
    return real(fd, data, verdict == HALF ? size / 2 : size);
}

/* Of a vector the first half of its pieces. */
#define VECTORS(name, offset_type)                                                      \
    ssize_t name(int fd, const struct iovec *parts, int count, offset_type offset) {    \
        REAL(ssize_t, name, int, const struct iovec *, int, offset_type);               \
        int verdict = of_descriptor(WRITE, fd, (size_t)count);                          \
        if (verdict == FAIL) return -1;                                                 \
        return real(fd, parts, verdict == HALF ? count / 2 : count, offset);            \
    }
VECTORS(pwritev, off_t)
VECTORS(pwritev64, off64_t)

ssize_t writev(int fd, const struct iovec *parts, int count) {
    REAL(ssize_t, writev, int, const struct iovec *, int);
    int verdict = of_descriptor(WRITE, fd, (size_t)count);
    if (verdict == FAIL) return -1;
    return real(fd, parts, verdict == HALF ? count / 2 : count);
}

#define ON_DESCRIPTOR(kind, name, type, value)                   \
    int name(int fd, type value) {                               \
        REAL(int, name, int, type);                              \
        return of_descriptor(kind, fd, 0) ? -1 : real(fd, value);\
    }
ON_DESCRIPTOR(SIZE, ftruncate, off_t, length)
ON_DESCRIPTOR(SIZE, ftruncate64, off64_t, length)

#define SYNCS(name)                                      \
    int name(int fd) {                                   \
        REAL(int, name, int);                            \
        return of_descriptor(SYNC, fd, 0) ? -1 : real(fd);\
    }
SYNCS(fsync)
SYNCS(fdatasync)

#define ALLOCATES(name, type)                                                        \
    int name(int fd, int how, type start, type length) {                             \
        REAL(int, name, int, int, type, type);                                       \
        return of_descriptor(SIZE, fd, 0) ? -1 : real(fd, how, start, length);       \
    }
ALLOCATES(fallocate, off_t)
ALLOCATES(fallocate64, off64_t)

#define POSIX_ALLOCATES(name, type)                                                  \
    int name(int fd, type start, type length) { /* says what is wrong, without errno */ \
        REAL(int, name, int, type, type);                                            \
        return of_descriptor(SIZE, fd, 0) ? (int)control->number : real(fd, start, length); \
    }
POSIX_ALLOCATES(posix_fallocate, off_t)
POSIX_ALLOCATES(posix_fallocate64, off64_t)

int rename(const char *from, const char *to) {
    REAL(int, rename, const char *, const char *);
    return of_path(NAME, AT_FDCWD, to) ? -1 : real(from, to);
}
int renameat(int old, const char *from, int new, const char *to) {
    REAL(int, renameat, int, const char *, int, const char *);
    return of_path(NAME, new, to) ? -1 : real(old, from, new, to);
}
int renameat2(int old, const char *from, int new, const char *to, unsigned flags) {
    REAL(int, renameat2, int, const char *, int, const char *, unsigned);
    return of_path(NAME, new, to) ? -1 : real(old, from, new, to, flags);
}
int link(const char *from, const char *to) {
    REAL(int, link, const char *, const char *);
    return of_path(NAME, AT_FDCWD, to) ? -1 : real(from, to);
}
int linkat(int old, const char *from, int new, const char *to, int flags) {
    REAL(int, linkat, int, const char *, int, const char *, int);
    return of_path(NAME, new, to) ? -1 : real(old, from, new, to, flags);
}
int unlink(const char *path) {
    REAL(int, unlink, const char *);
    return of_path(UNLINK, AT_FDCWD, path) ? -1 : real(path);
}
int unlinkat(int folder, const char *path, int flags) {
    REAL(int, unlinkat, int, const char *, int);
    return of_path(UNLINK, folder, path) ? -1 : real(folder, path, flags);
}
int mkdir(const char *path, mode_t mode) {
    REAL(int, mkdir, const char *, mode_t);
    return of_path(MAKE, AT_FDCWD, path) ? -1 : real(path, mode);
}

#define OPENS(name)                                                             \
    int name(const char *path, int flags, ...) {                                \
        REAL(int, name, const char *, int, ...);                                \
        va_list more;                                                           \
        va_start(more, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                           \
        if ((flags & O_CREAT) && of_path(MAKE, AT_FDCWD, path)) return -1;      \
        return real(path, flags, mode);                                         \
    }
#define OPENS_AT(name)                                                          \
    int name(int folder, const char *path, int flags, ...) {                    \
        REAL(int, name, int, const char *, int, ...);                           \
        va_list more;                                                           \
        va_start(more, flags);                                                  \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, mode_t) : 0; \
        va_end(more);                                                           \
        if ((flags & O_CREAT) && of_path(MAKE, folder, path)) return -1;        \
        return real(folder, path, flags, mode);                                 \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)
