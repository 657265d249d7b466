/* A training loop that survives preemption: each step is hashed with all steps before it; restored state is checked.
 *
 * cc -I ../include train.c liblattice_checkpoint.a -lpthread -ldl -lm -o train
 * lattice submit --checkpoint=shmem -- ./train 1000
 */
#include "lattice_checkpoint.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t next(uint64_t chain, int64_t step)
{
    /* FNV-1a over the previous hash and the step. */
    uint64_t hash = 14695981039346656037u;
    uint64_t words[2] = {chain, (uint64_t)step};
    const unsigned char *bytes = (const unsigned char *)words;
    for (size_t i = 0; i < sizeof words; i++)
        hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

/* 0, or an errno. Incomplete output must not count as saved, so every call is checked. */
static int save(const char *directory, int64_t step, uint64_t chain)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/state", directory);
    FILE *file = fopen(path, "w");
    if (!file)
        return errno;
    int wrote = fprintf(file, "%" PRId64 " %" PRIu64 "\n", step, chain);
    int closed = fclose(file);
    return wrote < 0 || closed != 0 ? (errno ? errno : EIO) : 0;
}

static void restore(const char *directory, int64_t *step, uint64_t *chain)
{
    char path[4200];
    snprintf(path, sizeof path, "%s/state", directory);
    FILE *file = fopen(path, "r");
    if (!file || fscanf(file, "%" SCNd64 " %" SCNu64, step, chain) != 2) {
        perror(path);
        exit(2);
    }
    fclose(file);
    uint64_t expected = 0;
    for (int64_t before = 1; before <= *step; before++)
        expected = next(expected, before);
    if (expected != *chain) {
        fprintf(stderr, "the restored state is not the result of %" PRId64 " steps\n", *step);
        exit(3);
    }
    printf("restored %" PRId64 "\n", *step);
}

int main(int argc, char **argv)
{
    int64_t steps = argc > 1 ? atoll(argv[1]) : 1000, step = 0;
    uint64_t chain = 0;
    const char *from = getenv("LATTICE_RESTORE_FROM");
    setvbuf(stdout, NULL, _IOLBF, 0);
    if (from && *from)
        restore(from, &step, &chain);
    lattice_checkpoint *listener = lattice_checkpoint_open();
    if (!listener && errno != ENOENT) {
        perror("checkpoints");
        return 1;
    }
    printf("begun\n");
    while (step < steps) {
        lattice_checkpoint_request request;
        usleep(10000); /* Simulates the computation of a real step. */
        chain = next(chain, ++step);
        if (lattice_checkpoint_asked(listener, &request) > 0) {
            int error = save(request.directory, step, chain);
            if (error)
                lattice_checkpoint_failed(listener, &request, strerror(error));
            else
                lattice_checkpoint_done(listener, &request, step, 1, -1);
        }
        printf("step %" PRId64 "\n", step);
    }
    lattice_checkpoint_close(listener);
    printf("final %" PRId64 " %" PRIu64 "\n", step, chain);
    return 0;
}
