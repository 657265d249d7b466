/* Loaded into a rank: holds it before each message to its process manager. The listener at RANK_GATE, a Unix socket, gets
 * "RANK PID WORDS" each time, and sends a byte to release the rank. Once that socket is closed, no rank is held any more. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <unistd.h>

struct event;

extern char **environ;

static pthread_mutex_t one_at_a_time = PTHREAD_MUTEX_INITIALIZER;
static int gate = -1;

/* The loopback port of the PMIx server: every PMIX_SERVER_URI ends with it. */
static int pmix_port(void)
{
    for (char **variable = environ; *variable; variable++) {
        const char *port = strrchr(*variable, ':');
        if (strncmp(*variable, "PMIX_SERVER_URI", 15) == 0 && port)
            return atoi(port + 1);
    }
    return 0;
}

static int is_the_managers(int fd)
{
    const char *inherited = getenv("PMI_FD");
    struct sockaddr_in peer;
    socklen_t length = sizeof peer;

    if (inherited && fd == atoi(inherited))
        return 1;
    if (getpeername(fd, (struct sockaddr *)&peer, &length) != 0 || peer.sin_family != AF_INET)
        return 0;
    return ntohs(peer.sin_port) == pmix_port();
}

static int reach(void)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path = getenv("RANK_GATE");

    gate = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (!path || strlen(path) >= sizeof at.sun_path || gate < 0)
        abort();
    strcpy(at.sun_path, path);
    return connect(gate, (struct sockaddr *)&at, sizeof at);
}

static void hold(int fd, const char *data, size_t bytes)
{
    const char *rank = getenv("LATTICE_RANK");
    char line[128];
    size_t length;

    if (fd < 3 || !is_the_managers(fd))
        return;
    pthread_mutex_lock(&one_at_a_time);
    if (gate != -1 || reach() == 0) {
        length = (size_t)snprintf(line, sizeof line, "%s %d ", rank ? rank : "?", getpid());
        for (size_t at = 0; at < bytes && data[at] != '\n' && length < sizeof line - 1; at++)
            line[length++] = data[at] >= ' ' && data[at] <= '~' ? data[at] : '.';
        line[length++] = '\n';
        /* These calls are not held. */
        if (sendto(gate, line, length, MSG_NOSIGNAL, NULL, 0) == (ssize_t)length)
            (void)!read(gate, line, 1);
    }
    pthread_mutex_unlock(&one_at_a_time);
}

ssize_t write(int fd, const void *data, size_t bytes)
{
    hold(fd, data, bytes);
    return syscall(SYS_write, fd, data, bytes);
}

ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    hold(fd, data, bytes);
    return sendto(fd, data, bytes, flags, NULL, 0);
}

ssize_t writev(int fd, const struct iovec *parts, int count)
{
    if (count > 0)
        hold(fd, parts[0].iov_base, parts[0].iov_len);
    return syscall(SYS_writev, fd, parts, count);
}

/* Replaces libevent's function. PMIx_Finalize waits two seconds for its answer, and then continues as if the answer had come. A held
 * rank may have to wait for longer. */
int event_add(struct event *event, const struct timeval *timeout)
{
    static const struct timeval two_seconds = {.tv_sec = 2}, long_enough = {.tv_sec = 300};
    int (*add)(struct event *, const struct timeval *);

    *(void **)&add = dlsym(RTLD_NEXT, "event_add");
    if (!add)
        abort();
    return add(event, timeout && timercmp(timeout, &two_seconds, ==) ? &long_enough : timeout);
}
