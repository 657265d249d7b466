/* Each rank says where it is: its rank and the world's size, the number of its program, its node, its rank there, which ranks
 * MPI says share the node with it, and its own arguments. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    int rank, size, local, shared, found, *appnum = NULL, *ranks;
    char line[4096];
    MPI_Comm node;

    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_get_attr(MPI_COMM_WORLD, MPI_APPNUM, &appnum, &found);
    MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
    MPI_Comm_rank(node, &local);
    MPI_Comm_size(node, &shared);
    ranks = malloc(sizeof(int) * (size_t)shared);
    MPI_Allgather(&rank, 1, MPI_INT, ranks, 1, MPI_INT, node);
    int at = snprintf(line, sizeof line, "%d/%d app %d on %s local %d of", rank, size, found ? *appnum : -1, getenv("LATTICE_NODE"), local);
    for (int i = 0; i < shared; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, " %d", ranks[i]);
    for (int i = 1; i < argc; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, " %s", argv[i]);
    puts(line);
    free(ranks);
    MPI_Comm_free(&node);
    MPI_Finalize();
    return 0;
}
