/* Logs the calls that change files under one directory, and makes one of them fail.
 *
 * Loaded with LD_PRELOAD it does nothing until shim_arm() names the directory. Every call that
 * changes a file or a name there has a number, from 1. The log has one line a call, followed by
 * the bytes that a write has written; the last field says how many:
 *
 *     number TAB kind TAB errno TAB inode TAB offset TAB path TAB second path TAB bytes NEWLINE
 *
 * A path of an open file is what /proc/self/fd says, so descriptors that were duplicated are
 * known as well.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum fault { NONE, EIO_ONCE, ENOSPC_EVER, SHORT, KILL_BEFORE, KILL_AFTER, KILL_WITHIN, EIO_EVER };

static char under[PATH_MAX];
static size_t under_length;
static int log_file = -1;
static long numbered, fault_at;
static int fault_kind;
static pthread_mutex_t lock = PTHREAD_RECURSIVE_MUTEX_INITIALIZER_NP;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

typedef long (*raw_call)(long, ...);

/* The system call function of the C library, for syscall() is ours. */
static raw_call loaded(void) {
    static raw_call found;
    if (!found) found = (raw_call)real("syscall");
    return found;
}
#define raw (loaded())

/* Numbers begin at 1 again. `directory` ends in a slash; a fault of kind NONE never happens. */
void shim_arm(const char *directory, const char *log, long at, int kind) {
    pthread_mutex_lock(&lock);
    under_length = strlen(directory);
    memcpy(under, directory, under_length + 1);
    log_file = raw(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    numbered = 0;
    fault_at = at;
    fault_kind = kind;
    pthread_mutex_unlock(&lock);
}

static int inside(const char *path) { return !strncmp(path, under, under_length); }

/* The absolute form of a path, links not followed. */
static const char *absolute(int folder, const char *path, char *room) {
    char link[64];
    ssize_t n;
    if (path[0] == '/') return path;
    if (folder == AT_FDCWD) {
        if (!getcwd(room, PATH_MAX)) return path;
    } else {
        snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
        n = raw(SYS_readlinkat, AT_FDCWD, link, room, PATH_MAX - 1);
        if (n < 0) return path;
        room[n] = 0;
    }
    n = strlen(room);
    snprintf(room + n, PATH_MAX - n, "/%s", path);
    return room;
}

/* The path of an open file, or NULL if it is none of ours. */
static const char *named(int fd, char *room) {
    char link[64];
    ssize_t n;
    if (!under_length || fd < 0 || fd == log_file) return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = raw(SYS_readlinkat, AT_FDCWD, link, room, PATH_MAX - 1);
    if (n < 0) return NULL;
    room[n] = 0;
    /* the directory itself has no slash at its end */
    if (inside(room) || ((size_t)n + 1 == under_length && !strncmp(room, under, n))) return room;
    return NULL;
}

static unsigned long inode_of(int fd) {
    struct stat about;
    return fstat(fd, &about) ? 0 : about.st_ino;
}

static void write_log(const char *data, size_t size) {
    while (size) {
        ssize_t n = raw(SYS_write, log_file, data, size);
        if (n <= 0) abort();
        data += n;
        size -= n;
    }
}

struct call {
    long number;
    const char *kind;
    int fault;
};

/* A call begins: gives it a number, finds its fault, and dies if that is to come before it. */
static struct call begin(const char *kind, int takes_space) {
    struct call call = {0, kind, NONE};
    pthread_mutex_lock(&lock);
    call.number = ++numbered;
    if (fault_at && call.number == fault_at) call.fault = fault_kind;
    if (fault_at && call.number > fault_at) {
        if (fault_kind == EIO_EVER) call.fault = EIO_ONCE;
        if (fault_kind == ENOSPC_EVER) call.fault = ENOSPC_EVER;
    }
    if (call.fault == EIO_EVER) call.fault = EIO_ONCE;
    if (call.fault == ENOSPC_EVER && !takes_space) call.fault = NONE;
    if (call.fault == KILL_BEFORE) kill(getpid(), SIGKILL);
    return call;
}

/* The errno that a call is to fail with, or 0. */
static int refused(const struct call *call) {
    if (call->fault == EIO_ONCE) return EIO;
    if (call->fault == ENOSPC_EVER) return ENOSPC;
    return 0;
}

/* A call ends: logs it, and dies if that is to come after it. */
static void end(const struct call *call, int error, unsigned long inode, long offset,
                const char *path, const char *second, const struct iovec *data, int many,
                size_t size) {
    char line[2 * PATH_MAX + 256];
    int n = snprintf(line, sizeof line, "%ld\t%s\t%d\t%lu\t%ld\t%s\t%s\t%zu\n", call->number,
                     call->kind, error, inode, offset, path, second ? second : "",
                     data ? size : 0);
    write_log(line, n);
    for (int i = 0; data && i < many && size; i++) {
        size_t part = data[i].iov_len < size ? data[i].iov_len : size;
        write_log(data[i].iov_base, part);
        size -= part;
    }
    if (call->fault == KILL_AFTER || call->fault == KILL_WITHIN) kill(getpid(), SIGKILL);
    pthread_mutex_unlock(&lock);
    errno = error;
}

/* What happened besides, as the program tells it; it has no number. */
void shim_note(const char *text) {
    char line[4096];
    pthread_mutex_lock(&lock);
    int n = snprintf(line, sizeof line, "0\tnote\t0\t0\t0\t%s\t\t0\n", text);
    write_log(line, n);
    pthread_mutex_unlock(&lock);
}

/* ---- opening */

static int opened(int folder, const char *path, int flags, mode_t mode) {
    char room[PATH_MAX];
    const char *whole = under_length ? absolute(folder, path, room) : path;
    struct stat about;
    int changes = under_length && inside(whole) && flags & (O_CREAT | O_TRUNC);
    int there = 0;
    if (changes) {
        there = !fstatat(AT_FDCWD, whole, &about, 0);
        if (there && (!(flags & O_TRUNC) || flags & O_EXCL)) changes = 0;
    }
    if (!changes) return raw(SYS_openat, folder, path, flags, mode);
    struct call call = begin(there ? "truncate" : "create", 1);
    int error = refused(&call), fd = -1;
    if (!error && (fd = raw(SYS_openat, folder, path, flags, mode)) < 0) error = errno;
    end(&call, error, fd < 0 ? 0 : inode_of(fd), 0, whole, NULL, NULL, 0, 0);
    return fd;
}

#define MODE(flags)                                                                               \
    mode_t mode = 0;                                                                              \
    if ((flags) & O_CREAT || ((flags) & O_TMPFILE) == O_TMPFILE) {                                \
        va_list more;                                                                             \
        va_start(more, flags);                                                                    \
        mode = va_arg(more, mode_t);                                                              \
        va_end(more);                                                                             \
    }

int open(const char *path, int flags, ...) {
    MODE(flags)
    return opened(AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE(flags)
    return opened(AT_FDCWD, path, flags | O_LARGEFILE, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return opened(folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE(flags)
    return opened(folder, path, flags | O_LARGEFILE, mode);
}
int creat(const char *path, mode_t mode) {
    return opened(AT_FDCWD, path, O_WRONLY | O_CREAT | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) { return creat(path, mode); }
int __open_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __open64_2(const char *path, int flags) { return opened(AT_FDCWD, path, flags, 0); }
int __openat_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }
int __openat64_2(int folder, const char *path, int flags) { return opened(folder, path, flags, 0); }

/* ---- writing */

#define AT_POSITION (-1L)

static ssize_t written(int fd, const struct iovec *data, int many, long at) {
    char room[PATH_MAX];
    const char *path = named(fd, room);
    if (!path) {
        if (at == AT_POSITION) return raw(SYS_writev, fd, data, many);
        return raw(SYS_pwritev, fd, data, many, at, 0);
    }
    size_t size = 0;
    for (int i = 0; i < many; i++) size += data[i].iov_len;
    struct call call = begin("write", 1);
    struct stat about;
    long offset = at;
    fstat(fd, &about);
    if (raw(SYS_fcntl, fd, F_GETFL) & O_APPEND)
        offset = about.st_size;
    else if (at == AT_POSITION)
        offset = lseek(fd, 0, SEEK_CUR);
    int error = refused(&call);
    ssize_t done = -1;
    if (!error) {
        if ((call.fault == SHORT || call.fault == KILL_WITHIN) && size > 1) {
            struct iovec half = data[0];
            if (half.iov_len > 1) half.iov_len /= 2;
            done = at == AT_POSITION ? raw(SYS_writev, fd, &half, 1)
                                     : raw(SYS_pwritev, fd, &half, 1, at, 0);
        } else {
            done = at == AT_POSITION ? raw(SYS_writev, fd, data, many)
                                     : raw(SYS_pwritev, fd, data, many, at, 0);
        }
        if (done < 0) error = errno;
    }
    end(&call, error, about.st_ino, offset, path, NULL, data, many, done < 0 ? 0 : done);
    return done;
}

ssize_t write(int fd, const void *data, size_t size) {
    struct iovec one = {(void *)data, size};
    if (!under_length) return raw(SYS_write, fd, data, size);
    return written(fd, &one, 1, AT_POSITION);
}
ssize_t pwrite(int fd, const void *data, size_t size, off_t at) {
    struct iovec one = {(void *)data, size};
    return written(fd, &one, 1, at);
}
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t at) {
    return pwrite(fd, data, size, at);
}
ssize_t writev(int fd, const struct iovec *data, int many) {
    return written(fd, data, many, AT_POSITION);
}
ssize_t pwritev(int fd, const struct iovec *data, int many, off_t at) {
    return written(fd, data, many, at);
}
ssize_t pwritev64(int fd, const struct iovec *data, int many, off64_t at) {
    return written(fd, data, many, at);
}
ssize_t pwritev2(int fd, const struct iovec *data, int many, off_t at, int flags) {
    (void)flags;
    return written(fd, data, many, at);
}
ssize_t pwritev64v2(int fd, const struct iovec *data, int many, off64_t at, int flags) {
    (void)flags;
    return written(fd, data, many, at);
}

/* ---- calls on an open file, and on names: `expression` does it and is negative if it fails */

#define ON_FILE(kind, fd, offset, space, expression)                                              \
    char room[PATH_MAX];                                                                          \
    const char *path = named(fd, room);                                                           \
    if (!path) return expression;                                                                 \
    struct call call = begin(kind, space);                                                        \
    int error = refused(&call), outcome = -1;                                                     \
    if (!error && (outcome = (expression)) < 0) error = errno;                                    \
    end(&call, error, inode_of(fd), offset, path, NULL, NULL, 0, 0);                              \
    return outcome;

#define ON_NAME(kind, folder, name, folder2, name2, space, expression)                            \
    char room[PATH_MAX], room2[PATH_MAX];                                                         \
    if (!under_length) return expression;                                                         \
    const char *path = absolute(folder, name, room);                                              \
    const char *second = absolute(folder2, name2, room2);                                         \
    if (!inside(path) && !inside(second)) return expression;                                      \
    struct call call = begin(kind, space);                                                        \
    int error = refused(&call), outcome = -1;                                                     \
    struct stat about;                                                                            \
    unsigned long inode = fstatat(AT_FDCWD, path, &about, AT_SYMLINK_NOFOLLOW) ? 0 : about.st_ino;\
    if (!error && (outcome = (expression)) < 0) error = errno;                                    \
    end(&call, error, inode, 0, path, second, NULL, 0, 0);                                        \
    return outcome;

int fsync(int fd) { ON_FILE("fsync", fd, 0, 0, raw(SYS_fsync, fd)) }
int fdatasync(int fd) { ON_FILE("fdatasync", fd, 0, 0, raw(SYS_fdatasync, fd)) }
int ftruncate(int fd, off_t size) { ON_FILE("resize", fd, size, 0, raw(SYS_ftruncate, fd, size)) }
int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }
int fallocate(int fd, int mode, off_t at, off_t size) {
    ON_FILE("unknown fallocate", fd, at, 1, raw(SYS_fallocate, fd, mode, at, size))
}
int fallocate64(int fd, int mode, off64_t at, off64_t size) { return fallocate(fd, mode, at, size); }
int posix_fallocate(int fd, off_t at, off_t size) { return fallocate(fd, 0, at, size) ? errno : 0; }
int posix_fallocate64(int fd, off64_t at, off64_t size) { return posix_fallocate(fd, at, size); }

int rename(const char *from, const char *to) {
    ON_NAME("rename", AT_FDCWD, from, AT_FDCWD, to, 0,
            raw(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0))
}
int renameat(int a, const char *from, int b, const char *to) {
    ON_NAME("rename", a, from, b, to, 0, raw(SYS_renameat2, a, from, b, to, 0))
}
int renameat2(int a, const char *from, int b, const char *to, unsigned flags) {
    ON_NAME("rename", a, from, b, to, 0, raw(SYS_renameat2, a, from, b, to, flags))
}
int linkat(int a, const char *from, int b, const char *to, int flags) {
    ON_NAME("link", a, from, b, to, 1, raw(SYS_linkat, a, from, b, to, flags))
}
int link(const char *from, const char *to) { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int folder, const char *name, int flags) {
    ON_NAME(flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, name, AT_FDCWD, "/", 0,
            raw(SYS_unlinkat, folder, name, flags))
}
int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char *name) { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char *name) {
    struct stat about;
    int folder = !fstatat(AT_FDCWD, name, &about, AT_SYMLINK_NOFOLLOW) && S_ISDIR(about.st_mode);
    return unlinkat(AT_FDCWD, name, folder ? AT_REMOVEDIR : 0);
}
int mkdirat(int folder, const char *name, mode_t mode) {
    ON_NAME("mkdir", folder, name, AT_FDCWD, "/", 1,
            raw(SYS_mkdirat, folder, name, mode))
}
int mkdir(const char *name, mode_t mode) { return mkdirat(AT_FDCWD, name, mode); }

/* ---- what neither Python nor DuckDB is known to do; a log that has one of these is refused */

int symlinkat(const char *target, int folder, const char *name) {
    ON_NAME("unknown symlink", folder, name, AT_FDCWD, "/", 1,
            raw(SYS_symlinkat, target, folder, name))
}
int symlink(const char *target, const char *name) { return symlinkat(target, AT_FDCWD, name); }
int truncate(const char *name, off_t size) {
    ON_NAME("unknown truncate", AT_FDCWD, name, AT_FDCWD, "/", 0,
            raw(SYS_truncate, name, size))
}
int truncate64(const char *name, off64_t size) { return truncate(name, size); }
ssize_t copy_file_range(int a, off64_t *from, int b, off64_t *to, size_t size, unsigned flags) {
    ON_FILE("unknown copy_file_range", b, 0, 1,
            raw(SYS_copy_file_range, a, from, b, to, size, flags))
}
ssize_t sendfile(int out, int in, off_t *at, size_t size) {
    ON_FILE("unknown sendfile", out, 0, 1, raw(SYS_sendfile, out, in, at, size))
}
ssize_t sendfile64(int out, int in, off64_t *at, size_t size) { return sendfile(out, in, at, size); }
ssize_t splice(int a, off64_t *from, int b, off64_t *to, size_t size, unsigned flags) {
    ON_FILE("unknown splice", b, 0, 1, raw(SYS_splice, a, from, b, to, size, flags))
}
int sync_file_range(int fd, off64_t at, off64_t size, unsigned flags) {
    ON_FILE("unknown sync_file_range", fd, at, 0, raw(SYS_sync_file_range, fd, at, size, flags))
}
int syncfs(int fd) { ON_FILE("unknown syncfs", fd, 0, 0, raw(SYS_syncfs, fd)) }

static void *mapped(void *where, size_t size, int protection, int flags, int fd, off_t at) {
    char room[PATH_MAX];
    const char *path = flags & MAP_SHARED && protection & PROT_WRITE ? named(fd, room) : NULL;
    if (path) {
        struct call call = begin("unknown mmap", 0);
        end(&call, 0, inode_of(fd), at, path, NULL, NULL, 0, 0);
    }
    return (void *)raw(SYS_mmap, where, size, protection, flags, fd, at);
}
void *mmap(void *where, size_t size, int protection, int flags, int fd, off_t at) {
    return mapped(where, size, protection, flags, fd, at);
}
void *mmap64(void *where, size_t size, int protection, int flags, int fd, off64_t at) {
    return mapped(where, size, protection, flags, fd, at);
}

/* io_uring and what Linux may call without a function of the C library. */
long syscall(long number, ...) {
    long given[6];
    va_list more;
    va_start(more, number);
    for (int i = 0; i < 6; i++) given[i] = va_arg(more, long);
    va_end(more);
    if (under_length && (number == SYS_io_uring_setup || number == SYS_io_uring_enter ||
                         number == SYS_openat2 || number == SYS_copy_file_range)) {
        struct call call = begin("unknown syscall", 0);
        end(&call, 0, 0, number, "", NULL, NULL, 0, 0);
    }
    return raw(number, given[0], given[1], given[2], given[3], given[4], given[5]);
}

static FILE *streamed(const char *name, const char *path, const char *how) {
    char room[PATH_MAX];
    const char *whole = under_length ? absolute(AT_FDCWD, path, room) : NULL;
    if (whole && inside(whole) && strpbrk(how, "wa+")) {
        struct call call = begin("unknown fopen", 1);
        end(&call, 0, 0, 0, whole, NULL, NULL, 0, 0);
    }
    return ((FILE * (*)(const char *, const char *)) real(name))(path, how);
}
FILE *fopen(const char *path, const char *how) { return streamed("fopen", path, how); }
FILE *fopen64(const char *path, const char *how) { return streamed("fopen64", path, how); }
