/* Rows of mapped arrays that are not in memory: found by the time that the first take, and asked for all at once. */

#ifndef BOC_FETCH_H
#define BOC_FETCH_H

#include <stdint.h>

#define PROBE 4     /* rows whose first bytes tell whether the others are in memory */
#define COLD 50000  /* nanoseconds to read them: ten times as long as from memory, less than one from a disk takes */

#if defined(__unix__) || defined(__APPLE__)
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static int64_t nanoseconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Ask the system to read n ascending rows of ``size`` bytes, if they seem not to be in memory: several times as fast as
   one by one. What cannot be advised is read when it is needed. */
static void fetch_rows(const void *array, int64_t size, const int64_t *rows, int64_t n)
{
    const int64_t begun = nanoseconds();
    if (n <= PROBE)
        return;
    for (int64_t i = 0; i < PROBE; i++)
        (void)*((const volatile char *)array + rows[i] * size);
    if (nanoseconds() - begun <= COLD)
        return;
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    for (int64_t i = 0; i < n; i++) {
        const uintptr_t begin = (uintptr_t)array + (uintptr_t)(rows[i] * size), first = begin / page * page;
        (void)madvise((void *)first, begin + (uintptr_t)size - first, MADV_WILLNEED);
    }
}
#else
static void fetch_rows(const void *array, int64_t size, const int64_t *rows, int64_t n)
{
    (void)array, (void)size, (void)rows, (void)n;
}
#endif

#endif
