/* An MPI ring with an allreduce at every step, printing one line a step: long enough to break things meanwhile.
 * ring LINES INTERVAL_MS [FILE TEXT]     FILE must begin with TEXT on every rank: that is the mounted environment.
 * RING_LOCAL_SIZE in the environment: so many ranks must share a node, as MPI sees it. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static void must_be_local(int expected)
{
    MPI_Comm node;
    int have;

    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &have);
    if (have != expected) {
        fprintf(stderr, "%d ranks share this node, expected %d\n", have, expected);
        MPI_Abort(MPI_COMM_WORLD, 10);
    }
    MPI_Comm_free(&node);
}

static void must_begin_with(const char *path, const char *text)
{
    char have[256] = "";
    /* A rank that is still in MPI_Init when its peers go fails there by itself, with a code of its own. */
    MPI_Barrier(MPI_COMM_WORLD);
    FILE *file = fopen(path, "r");
    if (file == NULL || fgets(have, sizeof have, file) == NULL || strncmp(have, text, strlen(text)) != 0) {
        fprintf(stderr, "%s is not there or does not begin with \"%s\"\n", path, text);
        MPI_Abort(MPI_COMM_WORLD, 9);
    }
    fclose(file);
}

int main(int argc, char **argv)
{
    int rank, size, lines = argc > 1 ? atoi(argv[1]) : 80, interval_ms = argc > 2 ? atoi(argv[2]) : 100;
    const char *node = getenv("LATTICE_NODE");

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (argc > 4)
        must_begin_with(argv[3], argv[4]);
    if (getenv("RING_LOCAL_SIZE") != NULL)
        must_be_local(atoi(getenv("RING_LOCAL_SIZE")));
    for (int line = 1; line <= lines; line++) {
        struct timespec pause = {interval_ms / 1000, (long)(interval_ms % 1000) * 1000000};
        int token = rank, from = -1;
        long mine = (long)rank + line, sum = 0, expected = (long)size * (size - 1) / 2 + (long)size * line;

        nanosleep(&pause, NULL);
        MPI_Sendrecv(&token, 1, MPI_INT, (rank + 1) % size, 1, &from, 1, MPI_INT, (rank + size - 1) % size, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        MPI_Allreduce(&mine, &sum, 1, MPI_LONG, MPI_SUM, MPI_COMM_WORLD);
        if (from != (rank + size - 1) % size || sum != expected) {
            fprintf(stderr, "rank %d line %d: got %d and %ld, expected %ld\n", rank, line, from, sum, expected);
            MPI_Abort(MPI_COMM_WORLD, 8);
        }
        printf("rank %d of %d line %d on %s\n", rank, size, line, node != NULL ? node : "?");
        fflush(stdout);
    }
    MPI_Finalize();
    return 0;
}
