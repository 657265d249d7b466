/* Checks a world of ranks: sums, large messages between all ranks, and which ranks share a node.
 * world LOCAL           LOCAL ranks are on each node
 * world LOCAL WHEN      and rank 5 is killed: before, after MPI_Init */
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Beyond what any transport sends at once. */
#define WORDS 8192

static void must(int holds, const char *what)
{
    if (!holds) {
        fprintf(stderr, "%s\n", what);
        MPI_Abort(MPI_COMM_WORLD, 9);
    }
}

int main(int argc, char **argv)
{
    int rank, size, sum, local, first;
    int *to, *from;
    MPI_Comm node;
    const char *when = argc > 2 ? argv[2] : "";
    const char *rank_text = getenv("LATTICE_RANK");

    if (strcmp(when, "before") == 0 && rank_text && strcmp(rank_text, "5") == 0)
        raise(SIGKILL);
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    if (strcmp(when, "after") == 0) {
        /* A rank that is still in MPI_Init would lose the memory that it is about to share. */
        MPI_Barrier(MPI_COMM_WORLD);
        if (rank == 5)
            raise(SIGKILL);
    }

    MPI_Allreduce(&rank, &sum, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    must(sum == size * (size - 1) / 2, "the ranks' sum is another");

    to = malloc(sizeof(int) * WORDS * size);
    from = calloc(WORDS * size, sizeof(int));
    must(to && from, "no memory");
    for (int i = 0; i < WORDS * size; i++)
        to[i] = rank * 1000 + i / WORDS;
    MPI_Alltoall(to, WORDS, MPI_INT, from, WORDS, MPI_INT, MPI_COMM_WORLD);
    for (int i = 0; i < WORDS * size; i++)
        must(from[i] == (i / WORDS) * 1000 + rank, "another rank's words came");

    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_size(node, &local);
    must(local == atoi(argv[1]), "another number of ranks shares this node");
    MPI_Allreduce(&rank, &first, 1, MPI_INT, MPI_MIN, node);
    must(rank / local == first / local, "a rank of another node seems to share this one");

    if (rank == 0)
        printf("%d ranks, %d a node\n", size, local);
    MPI_Finalize();
    return 0;
}
