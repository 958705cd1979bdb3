/* Faults of the file system, preloaded before the C library: call number N of those that were chosen fails.
 *
 * Only calls about files below the folder FAULTS_ROOT count. faults_arm chooses, faults_seen tells how many there were.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

enum { OPEN = 1, CREATE = 2, WRITE = 4, SYNC = 8, NAME = 16, REMOVE = 32 };

static long wanted = -1, seen = 0;
static int number = 0, kinds = 0, sticky = 0, hit = 0;

void faults_arm(long call, int error, int mask, int again)
{
    wanted = call, number = error, kinds = mask, sticky = again, seen = 0, hit = 0;
}

long faults_seen(void) { return seen; }
int faults_hit(void) { return hit; }

static int below(int folder, const char *path)
{
    static const char *root = NULL;
    char link[64], place[4096];
    if (root == NULL && (root = getenv("FAULTS_ROOT")) == NULL)
        return 0;
    if (path != NULL && path[0] == '/')
        return strncmp(path, root, strlen(root)) == 0;
    if (folder < 0)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
    const ssize_t length = readlink(link, place, sizeof place - 1);
    return length > 0 && (place[length] = 0, strncmp(place, root, strlen(root)) == 0);
}

/* Whether this call is to fail: with errno set, or, for number 0, by writing half of the bytes. */
static int fails(int kind, int folder, const char *path)
{
    const int before = errno;
    if (!(kinds & kind) || !below(folder, path))
        return errno = before, 0;
    const long call = __atomic_fetch_add(&seen, 1, __ATOMIC_SEQ_CST);
    if (wanted < 0 || !(call == wanted || (sticky && call > wanted)))
        return errno = before, 0;
    hit |= kind;
    errno = number;
    return 1;
}

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define OPENS(name)                                                                                                    \
    int name(const char *path, int flags, ...)                                                                         \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        const int mode = flags & O_CREAT ? va_arg(rest, int) : 0;                                                      \
        va_end(rest);                                                                                                  \
        return fails(flags & O_CREAT ? CREATE : OPEN, -1, path) ? -1 : REAL(name)(path, flags, mode);                  \
    }
#define OPENS_AT(name)                                                                                                 \
    int name(int folder, const char *path, int flags, ...)                                                             \
    {                                                                                                                  \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        const int mode = flags & O_CREAT ? va_arg(rest, int) : 0;                                                      \
        va_end(rest);                                                                                                  \
        return fails(flags & O_CREAT ? CREATE : OPEN, folder, path) ? -1 : REAL(name)(folder, path, flags, mode);      \
    }
OPENS(open)
OPENS(open64)
OPENS_AT(openat)
OPENS_AT(openat64)

ssize_t write(int file, const void *data, size_t size)
{
    if (!fails(WRITE, file, NULL))
        return REAL(write)(file, data, size);
    return number ? -1 : REAL(write)(file, data, size > 1 ? size / 2 : size);
}

#define WRITES_AT(name, offset_t)                                                                                      \
    ssize_t name(int file, const void *data, size_t size, offset_t at)                                                 \
    {                                                                                                                  \
        if (!fails(WRITE, file, NULL))                                                                                 \
            return REAL(name)(file, data, size, at);                                                                   \
        return number ? -1 : REAL(name)(file, data, size > 1 ? size / 2 : size, at);                                   \
    }
WRITES_AT(pwrite, off_t)
WRITES_AT(pwrite64, off64_t)

int fsync(int file) { return fails(SYNC, file, NULL) ? -1 : REAL(fsync)(file); }
int ftruncate(int file, off_t size) { return fails(NAME, file, NULL) ? -1 : REAL(ftruncate)(file, size); }
int ftruncate64(int file, off64_t size) { return fails(NAME, file, NULL) ? -1 : REAL(ftruncate64)(file, size); }
int rename(const char *old, const char *new) { return fails(NAME, -1, new) ? -1 : REAL(rename)(old, new); }
int mkdir(const char *path, mode_t mode) { return fails(NAME, -1, path) ? -1 : REAL(mkdir)(path, mode); }
int unlink(const char *path) { return fails(REMOVE, -1, path) ? -1 : REAL(unlink)(path); }
int rmdir(const char *path) { return fails(REMOVE, -1, path) ? -1 : REAL(rmdir)(path); }
int unlinkat(int folder, const char *path, int flags)
{
    return fails(REMOVE, folder, path) ? -1 : REAL(unlinkat)(folder, path, flags);
}
