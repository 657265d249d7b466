/* What a host does to one process on it: its clock is wrong, its disk is slow. Two numbers in a file that both share:
 * seconds added to the time of day, milliseconds that each sync takes longer. The monotonic clock is left alone: no
 * administrator and no NTP can set that one. */
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

struct host {
    int64_t clock_seconds;
    int64_t sync_ms;
};

static volatile const struct host *host;

__attribute__((constructor)) static void attach(void)
{
    const char *path = getenv("LATTICE_LAB_HOST");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = fd < 0 ? MAP_FAILED : mmap(NULL, sizeof *host, PROT_READ, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED) {
        /* Without it a test would see nothing go wrong, and pass. */
        fprintf(stderr, "LATTICE_LAB_HOST=%s cannot be used\n", path ? path : "");
        abort();
    }
    close(fd);
    host = at;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    int result = (int)syscall(SYS_clock_gettime, clock, now);
    /* Another library's constructor may ask before ours has run. */
    if (result == 0 && clock == CLOCK_REALTIME && host)
        now->tv_sec += host->clock_seconds;
    return result;
}

static void wait_for_disk(void)
{
    int64_t ms = host ? host->sync_ms : 0;
    struct timespec left = {ms / 1000, ms % 1000 * 1000000};
    while (ms > 0 && nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

int fdatasync(int fd)
{
    wait_for_disk();
    return (int)syscall(SYS_fdatasync, fd);
}

int fsync(int fd)
{
    wait_for_disk();
    return (int)syscall(SYS_fsync, fd);
}
